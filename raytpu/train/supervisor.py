"""The life of a run: attempts on a gang that is held over all of them, and what follows each."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from ray.train import Result

from raytpu.errors import RaytpuError
from raytpu.gang import Holding
from raytpu.plan import Ending, EndingKind, decide
from raytpu.plan.ledger import START_FAILURES_TO_QUARANTINE
from raytpu.plan.restart import Finish, GiveUp, Restart, slices_to_give_up
from raytpu.record import AttemptEnded, AttemptStarted, PhaseTimed, StateChanged
from raytpu.train.attempt import Attempt, Outcome, run_attempt
from raytpu.train.ray_train_seam import HostWorker
from raytpu.train.standby import Standbys
from raytpu.train.training import Training

POLL_S = 0.5


def supervise(training: Training) -> Result:
    """Train to the end, in as many attempts as ``recovery`` allows.

    Every slice and process is free again when this returns or raises.

    Raises:
        Unplaceable, DeadlineExceeded: the slices could not be held, or hosts were late time and again.
        WrongRequest: the data cannot be read, or a checkpoint is of another model.
        RunFailed: how the last attempt ended; a note on it says why there is no other one.
        RaytpuError: whatever ``stop_requested`` raised.
    """
    with _holding(training) as holding, _standbys(training) as standbys:
        return _Supervisor(training, holding, standbys).run()


@contextmanager
def _standbys(training: Training) -> Iterator[Standbys]:
    standbys = Standbys(
        HostWorker,
        entrypoint=training.program if isinstance(training.program, str) else None,
        with_orbax=training.with_checkpoints,
        python_path=training.python_path,
    )
    try:
        yield standbys
    finally:
        standbys.close()


def _holding(training: Training) -> Holding:
    return Holding(
        training.slices,
        owner=training.name,
        hold_s=training.deadlines.hold_s,
        priority=training.priority,
        save_s=training.deadlines.save_s,
        silence_s=training.deadlines.orphan_grace_s,
        waiting=training.waiting,
        alive=training.stop_requested,
    )


class _Supervisor:
    def __init__(self, training: Training, holding: Holding, standbys: Standbys) -> None:
        self._training, self._holding, self._standbys = training, holding, standbys
        self._log = training.log
        self._endings: list[Ending] = []
        self._processes: dict[str, int] = {}

    def run(self) -> Result:
        self._log.write(StateChanged(state="holding slices"))
        while True:
            self._fill()
            outcome = self._attempt(self._training.first_attempt + len(self._endings))
            self._endings.append(outcome.ending)
            decision = decide(self._endings, self._training.recovery)
            match decision:
                case Finish():
                    assert outcome.result is not None
                    return outcome.result
                case GiveUp(reason=reason):
                    assert outcome.error is not None
                    if reason:
                        outcome.error.add_note(f"no further attempt: {reason}")
                    raise outcome.error
                case Restart(wait_s=wait_s):
                    self._make_way(outcome, wait_s)

    def _fill(self) -> None:
        """Hold the gang whole, and tell how long that took."""
        began = time.perf_counter()
        self._holding.fill()
        self._log.write(PhaseTimed(name="hold slices", seconds=time.perf_counter() - began))

    def _attempt(self, number: int) -> Outcome:
        """One attempt, with its begin and its end in the record, whatever ends it."""
        training, gang = self._training, self._holding.plan
        names = tuple(planned.name for planned in gang.slices)
        ending, reason = EndingKind.STOPPED, "the driver was interrupted"
        lost: tuple[str, ...] = ()
        self._log.write(AttemptStarted(attempt=number, slices=names, processes=len(gang.processes)))
        try:
            self._log.write(StateChanged(state="starting hosts"))
            outcome = run_attempt(
                Attempt(
                    job=training.job_for(number, gang),
                    program=training.program,
                    holding=self._holding,
                    standbys=self._standbys,
                    predecessors=dict(self._processes),
                    deadlines=training.deadlines,
                    recovery=training.recovery,
                    run_config=training.run_config,
                    log=self._log,
                    data=training.data,
                    datasets=training.datasets,
                    dataset_config=training.dataset_config,
                    stop_requested=training.stop_requested,
                )
            )
            ending, lost = outcome.ending.kind, outcome.ending.lost
            reason = _for_the_record(outcome)
        finally:
            self._log.write(AttemptEnded(ending=ending, reason=reason, slices=lost))
        self._processes |= outcome.processes
        return outcome

    def _make_way(self, outcome: Outcome, wait_s: float) -> None:
        """Say what happens now, give up slices that do not start, and wait."""
        for name in slices_to_give_up(self._endings, START_FAILURES_TO_QUARANTINE):
            planned = next(each for each in self._holding.plan.slices if each.name == name)
            self._holding.drop(
                planned.processes[0], f"a host did not start {START_FAILURES_TO_QUARANTINE} times in a row"
            )
        lost = dict(self._holding.lost)
        # The name of a lost host may come back as another machine, on which its process never was.
        self._processes = {
            host: pid for host, pid in self._processes.items() if host.rpartition("/")[0] not in lost
        }
        state = "replacing" if lost else "restarting"
        self._log.write(StateChanged(state=state, reason=self._what_now(outcome, lost, wait_s)))
        until = time.monotonic() + wait_s
        while (left_s := until - time.monotonic()) > 0:
            self._training.stop_requested()
            time.sleep(min(POLL_S, left_s))

    def _what_now(self, outcome: Outcome, lost: Mapping[str, str], wait_s: float) -> str:
        """One sentence: what broke, what stays, what comes."""
        wait = f" in {wait_s:g} s" if wait_s else ""
        if not lost:
            first = str(outcome.error).splitlines()[0]
            return f"{first}; the slices stay held, and all hosts start anew{wait}"
        broke = ", ".join(f"{name} ({reason})" for name, reason in lost.items())
        stay = [each.name for each in self._holding.plan.slices if each.name not in lost]
        keeps = f"{', '.join(stay)} stay{'s' if len(stay) == 1 else ''} held" if stay else "none is left"
        ready = min(len(lost), len(self._holding.spares))
        more = len(lost) - ready
        takes = [f"{ready} held in reserve"] * bool(ready) + [f"{more} to be found"] * bool(more)
        return f"lost {broke}; {keeps}; in place of the lost: {' and '.join(takes)}{wait}"


def _for_the_record(outcome: Outcome) -> str:
    """Why an attempt ended, with what a person is spared."""
    if outcome.error is None:
        return ""
    accounts = [] if outcome.ending.lost else [f"{name}: {said}" for name, said in outcome.accounts.items()]
    return "\n".join([str(outcome.error), *accounts])


def reason_of(error: RaytpuError) -> str:
    """What a person reads about an error: its message, then its notes."""
    return "\n".join([str(error), *getattr(error, "__notes__", [])])
