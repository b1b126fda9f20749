"""What can be known to be wrong before anything is started."""

from __future__ import annotations

from collections.abc import Callable

from raytpu.errors import RaytpuError, WrongRequest
from raytpu.record import RunDirectory, check_free
from raytpu.spec import Workload


def check_request(workload: Workload, directory: RunDirectory) -> None:
    """Look at the train function and its config, the data sources and the storage; start nothing.

    Raises:
        WrongRequest: what is wrong; all of it at once.
        RunIsLive: another driver has the run.
    """
    checks: list[Callable[[], None]] = [
        lambda: check_program(workload),
        lambda: _check_data(workload),
        directory.check_writable,
    ]
    problems = []
    for check in checks:
        try:
            check()
        except RaytpuError as error:
            problems.append(error)
    if len(problems) == 1:
        raise problems[0]
    if problems:
        raise WrongRequest("\n".join(str(problem) for problem in problems))
    check_free(directory)


def check_program(workload: Workload) -> None:
    """Look at the train function and its config alone.

    Raises:
        EntrypointError: there is no such function, or it takes something else.
        WorkloadInvalid: ``train.config`` is not what the function asks for.
    """
    from raytpu.train.entrypoint import bind, load_entrypoint

    bind(load_entrypoint(workload.train.entrypoint), workload.train.config)


def _check_data(workload: Workload) -> None:
    if not workload.data:
        return
    from raytpu.data import check_source

    problems = []
    for name, source in workload.data.items():
        try:
            check_source(source)
        except RaytpuError as error:
            problems.append(f"data.{name}: {error}")
    if problems:
        from raytpu.errors import DataError

        raise DataError("\n".join(problems))
