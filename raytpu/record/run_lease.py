"""Who drives a run now: at most one driver, known by a file that it renews, told to stop by another.

``driver.json`` lies in the folder of the run, above its lineages, so that a fresh start cannot run beside
the old lineage under the same name. It is renewed every few seconds by a thread of the driver. A driver
that died is replaced at once when it ran on this host (its process is gone, or its number belongs to
another process now), and once its heartbeat is old when it ran elsewhere.

On a local path taking the lease is atomic (a file lock is held meanwhile). Object stores offer no lock
through fsspec: there two drivers that start within the same second are told apart by the first renewal,
at which the loser sees the other's name and ``check`` raises.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import secrets
import socket
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, fields
from types import TracebackType
from typing import Any

from raytpu.errors import RunIsLive, StorageError
from raytpu.record.run_directory import RunDirectory
from raytpu.record.storage import delete_file, is_local, join_url, make_folder, read_bytes, write_bytes

RENEW_INTERVAL_S = 5.0

# Six renewals: a driver that misses them all is dead, frozen, or cut off from the storage.
STALE_AFTER_S = 30.0

# The kernel counts the start of a process in ticks of 10 ms, from a boot time that clock changes move.
_SAME_START_S = 2.0

# Taking a run is a few small reads and writes: whoever needs longer is frozen, or its storage is.
_LOCK_DEADLINE_S = 10.0

DRIVER_FILE = "driver.json"
STOP_FILE = "stop.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class Driver:
    """What a driver says about itself in ``driver.json``."""

    token: str
    """Random; tells two drivers apart whatever else is equal."""
    pid: int
    pid_started_s: float
    """When the process ``pid`` began, by the clock of its machine."""
    hostname: str
    machine: str
    """Boot and process-number space of the machine; empty where the system does not tell."""
    started_s: float
    """When the lease was taken, in seconds since 1970."""
    heartbeat_s: float
    """When the lease was last renewed."""
    cluster: str
    """Address of the Ray cluster; empty when not known yet."""
    lineage: int

    def __str__(self) -> str:
        return f"process {self.pid} on {self.hostname}"


@dataclass(frozen=True, slots=True, kw_only=True)
class StopRequest:
    reason: str
    who: str
    time_s: float


class RunLease:
    """The right to drive a run, held by this process and renewed by a thread until ``release``."""

    def __init__(self, directory: RunDirectory, driver: Driver, clock: Callable[[], float]) -> None:
        """Not for callers: use ``RunLease.take``."""
        self._directory, self._driver, self._clock = directory, driver, clock
        self._released = threading.Event()
        self._other: Driver | None = None
        self._lock = threading.Lock()
        self._thread = threading.Thread(
            target=self._renew_regularly, name=f"raytpu-lease-{directory.run}", daemon=True
        )

    @classmethod
    def take(
        cls, directory: RunDirectory, cluster: str = "", clock: Callable[[], float] = time.time
    ) -> RunLease:
        """Become the driver of the run and forget earlier wishes that it stop.

        Args:
            directory: the lineage to drive.
            cluster: address of the Ray cluster, if it is known yet.
            clock: seconds since 1970.

        Raises:
            RunIsLive: another driver has the run; the message names it and the next step.
            StorageError: the folder of the run cannot be written.
        """
        with _exclusive(directory):
            present = read_driver(directory)
            now_s = clock()
            if present is not None and is_alive(present, now_s):
                raise RunIsLive(_live_message(directory, present, now_s))
            driver = _this_process(directory, cluster, now_s)
            _write_driver(directory, driver)
        delete_file(join_url(directory.run_url, STOP_FILE))
        lease = cls(directory, driver, clock)
        lease._thread.start()
        return lease

    @property
    def driver(self) -> Driver:
        return self._driver

    def check(self) -> None:
        """Make sure that the lease is still ours. Cheap: looks at what the renewing thread last saw.

        Raises:
            RunIsLive: another driver took the run, because our heartbeat looked dead to it.
        """
        if self._other is not None:
            raise RunIsLive(_live_message(self._directory, self._other, self._clock()))

    def announce(self, cluster: str) -> None:
        """Tell others the address of the cluster, at once."""
        with self._lock:
            self._driver = _changed(self._driver, cluster=cluster)
        self._renew()

    def stop_requested(self) -> StopRequest | None:
        """The wish of another that the run end, if there is one."""
        return stop_requested(self._directory)

    def release(self) -> None:
        """Let the run go. Doing it twice is not an error.

        Raises:
            StorageError: the storage does not answer.
        """
        self._released.set()
        if self._thread.is_alive():
            self._thread.join()
        with self._lock:
            present = read_driver(self._directory)
            if present is not None and present.token == self._driver.token:
                delete_file(join_url(self._directory.run_url, DRIVER_FILE))

    def __enter__(self) -> RunLease:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.release()

    def _renew_regularly(self) -> None:
        while self._other is None and not self._released.wait(RENEW_INTERVAL_S):
            try:
                self._renew()
            except StorageError:
                # Tried again at the next beat. If it lasts, another may take over, and ``check`` will tell.
                continue

    def _renew(self) -> None:
        with self._lock:
            present = read_driver(self._directory)
            if present is not None and present.token != self._driver.token:
                self._other = present
                return
            self._driver = _changed(self._driver, heartbeat_s=self._clock())
            _write_driver(self._directory, self._driver)


def read_driver(directory: RunDirectory) -> Driver | None:
    """Who drives the run, or was driving it when it died; ``None`` when nobody does.

    Raises:
        StorageError: the file cannot be read or is no driver file.
    """
    url = join_url(directory.run_url, DRIVER_FILE)
    document = _read_json(url)
    if document is None:
        return None
    try:
        return Driver(**{entry.name: document[entry.name] for entry in fields(Driver)})
    except KeyError as error:
        raise StorageError(
            f"cannot read {url}: {error} is missing; another version of raytpu wrote it"
        ) from error


def is_alive(driver: Driver, now_s: float) -> bool:
    """Whether ``driver`` may still act: on this host by its process, elsewhere by its heartbeat."""
    if driver.machine and (driver.hostname, driver.machine) == (socket.gethostname(), _machine()):
        return _process_lives(driver.pid, driver.pid_started_s)
    return now_s - driver.heartbeat_s <= STALE_AFTER_S


def check_free(directory: RunDirectory, clock: Callable[[], float] = time.time) -> None:
    """Make sure that nobody drives the run now, without taking it.

    Raises:
        RunIsLive: naming the driver and the next step.
    """
    present, now_s = read_driver(directory), clock()
    if present is not None and is_alive(present, now_s):
        raise RunIsLive(_live_message(directory, present, now_s))


def request_stop(
    directory: RunDirectory, reason: str, who: str, clock: Callable[[], float] = time.time
) -> None:
    """Ask the driver of the run to end it. Asking twice is not an error; a new driver forgets it.

    Raises:
        StorageError: the folder of the run cannot be written.
    """
    document = asdict(StopRequest(reason=reason, who=who, time_s=clock()))
    write_bytes(join_url(directory.run_url, STOP_FILE), json.dumps(document).encode())


def stop_requested(directory: RunDirectory) -> StopRequest | None:
    """The wish that the run end, if there is one.

    Raises:
        StorageError: the storage does not answer.
    """
    document = _read_json(join_url(directory.run_url, STOP_FILE))
    if document is None:
        return None
    return StopRequest(
        reason=str(document.get("reason", "")),
        who=str(document.get("who", "")),
        time_s=float(document.get("time_s", 0.0)),
    )


def _live_message(directory: RunDirectory, driver: Driver, now_s: float) -> str:
    since = time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(driver.started_s))
    lines = [
        f"run {directory.run!r} is driven by {driver} since {since}"
        f" (last heartbeat {max(0.0, now_s - driver.heartbeat_s):.0f} s ago)"
    ]
    if not driver.machine or driver.hostname != socket.gethostname():
        lines.append(f"  if that machine is gone, try again in {STALE_AFTER_S:.0f} s")
    lines.append(f"  to end it: raytpu stop {directory.run}")
    return "\n".join(lines)


def _this_process(directory: RunDirectory, cluster: str, now_s: float) -> Driver:
    import psutil

    return Driver(
        token=secrets.token_hex(8),
        pid=os.getpid(),
        pid_started_s=psutil.Process().create_time(),
        hostname=socket.gethostname(),
        machine=_machine(),
        started_s=now_s,
        heartbeat_s=now_s,
        cluster=cluster,
        lineage=directory.lineage,
    )


def _process_lives(pid: int, started_s: float) -> bool:
    import psutil

    try:
        process = psutil.Process(pid)
        same = abs(process.create_time() - started_s) <= _SAME_START_S
        return same and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def _machine() -> str:
    """Boot id and process-number namespace: two containers with one hostname do not share process numbers."""
    try:
        with open("/proc/sys/kernel/random/boot_id") as file:
            boot = file.read().strip()
        return f"{boot}/{os.readlink('/proc/self/ns/pid')}"
    except OSError:  # not Linux, or /proc is hidden: the heartbeat decides
        return ""


def _changed(driver: Driver, **changes: Any) -> Driver:
    return Driver(**{**asdict(driver), **changes})


def _write_driver(directory: RunDirectory, driver: Driver) -> None:
    data = json.dumps(asdict(driver), indent=2).encode()
    write_bytes(join_url(directory.run_url, DRIVER_FILE), data)


def _read_json(url: str) -> dict[str, Any] | None:
    data = read_bytes(url)
    if data is None:
        return None
    try:
        document = json.loads(data)
    except ValueError as error:
        raise StorageError(f"cannot read {url}: it is not JSON ({error})") from error
    if not isinstance(document, dict):
        raise StorageError(f"cannot read {url}: expected a JSON object")
    return document


@contextlib.contextmanager
def _exclusive(directory: RunDirectory) -> Iterator[None]:
    """On a local path, one taker at a time; elsewhere nothing (see the head of the module)."""
    if not is_local(directory.run_url):
        yield
        return
    make_folder(directory.run_url)
    path = join_url(directory.run_url, ".driver.lock")
    try:
        file = open(path, "ab")  # noqa: SIM115 (closed below, also when flock fails)
    except OSError as error:
        raise StorageError(f"cannot write {path}: {error.strerror}") from error
    with file:
        until = time.monotonic() + _LOCK_DEADLINE_S
        while True:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError as error:
                if time.monotonic() >= until:
                    raise RunIsLive(
                        f"run {directory.run!r} is being taken by another process, which has held {path} for "
                        f"{_LOCK_DEADLINE_S:g} s; if it is frozen, end it"
                    ) from error
                time.sleep(0.05)
        yield
