"""The owner's side: ask the book for slices, hold them, hear what happens to them."""

from __future__ import annotations

import secrets
import threading
import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from multiprocessing.connection import Connection
from types import TracebackType
from typing import Any, Self

import ray
from ray.exceptions import RayActorError

from raytpu.errors import DeadlineExceeded, LeaseEnded, RaytpuError, SliceLost, WrongRequest
from raytpu.gang import stream
from raytpu.gang.asking import check_wish
from raytpu.gang.held import HeldSlice, PreemptionNotice, held_slice
from raytpu.gang.open_book import check_version, open_book
from raytpu.plan import Diagnosis, GangPlan, ProcessAssignment
from raytpu.plan.ledger import Request
from raytpu.spec import Slices

ANSWER_S = 30.0
"""For the book to answer a release, or to be there again after its process died; it restarts in seconds."""

REFUSAL_S = 1.0
"""For the book's refusal to come after the deadline: it says why."""

RETRY_S = 0.25


class Lease:
    """The right to whole slices until ``release``, or until the book takes them back. Get one from ``hold``.

    Held from the call of ``hold`` on. As a context manager it is released at the end of the block; one that
    is dropped without ``release`` stays held. It ends as well when this process ends, in any way, after
    ``orphan_grace_s``. Methods may be called from any thread.
    """

    def __init__(self, request: Request, *, must_exist: bool) -> None:
        self._request = request
        self._must_exist = must_exist
        self._session = secrets.token_hex(8)
        self._changed = threading.Condition()
        self._connection: Connection | None = None
        self._sending = threading.Lock()
        self._closing = False
        self._granted: stream.Granted | None = None
        self._waiting: stream.Waiting | None = None
        self._refusal: RaytpuError | None = None
        self._lost: dict[str, str] = {}
        self._notice: PreemptionNotice | None = None
        self._over: str | None = None
        self._released = False
        self._deadline_s = time.monotonic() + request.deadline_s
        self._absent_since_s: float | None = None
        self._thread = threading.Thread(target=self._run, name="raytpu-lease", daemon=True)

    # -- what is held ----------------------------------------------------------------------------------

    @property
    def id(self) -> str:
        """Whoever presents it may take this lease over once its owner is gone."""
        return self._request.id

    @property
    def plan(self) -> GangPlan:
        """The hosts in process order, as they were granted."""
        assert self._granted is not None, "hold() returns a lease that is granted"
        return self._granted.lease.plan

    @property
    def slices(self) -> tuple[HeldSlice, ...]:
        """What was granted and is not lost."""
        assert self._granted is not None
        with self._changed:
            lost = set(self._lost)
        return tuple(
            held_slice(planned, self._granted.groups[planned.name])
            for planned in self._granted.lease.slices
            if planned.name not in lost
        )

    @property
    def lost(self) -> Mapping[str, str]:
        """Reason by name of each slice that this lease has lost."""
        with self._changed:
            return dict(self._lost)

    @property
    def notice(self) -> PreemptionNotice | None:
        """The announcement that somebody of higher priority gets the slices."""
        with self._changed:
            return self._notice

    def check(self, known: Collection[str] = ()) -> None:
        """Raise when the lease is no longer what was granted.

        Args:
            known: lost slices that the owner has dealt with.

        Raises:
            SliceLost: naming the slices and why; the others are still held.
            LeaseEnded: all of it was taken back, by preemption or because this process was silent for too
                long; or the book is gone for good.
        """
        with self._changed:
            news = {name: reason for name, reason in self._lost.items() if name not in known}
            if news:
                raise SliceLost(news)
            if self._over is not None and not self._released:
                raise LeaseEnded(self._request.owner, self._over)
            absent_s = 0.0 if self._absent_since_s is None else time.monotonic() - self._absent_since_s
        if absent_s > ANSWER_S:
            raise LeaseEnded(
                self._request.owner, f"the book of slices has not been reachable for {absent_s:.0f} s"
            )

    def wait_for_change(self, timeout_s: float) -> bool:
        """Until ``lost``, ``notice`` or the lease itself changes; whether something has within the time."""
        with self._changed:
            before = (len(self._lost), self._notice, self._over)
            return self._changed.wait_for(
                lambda: (len(self._lost), self._notice, self._over) != before, timeout_s
            )

    # -- what the owner says ---------------------------------------------------------------------------

    def report_lost(self, host: ProcessAssignment, reason: str) -> None:
        """This host is gone: its whole slice is dropped at once."""
        self._say(stream.HostFailed(slice_name=host.slice_name, host=host.host, reason=reason, lost=True))

    def report_failed_start(self, host: ProcessAssignment, reason: str) -> None:
        """This host did not start a process. Several times in a row put its slice under quarantine."""
        self._say(stream.HostFailed(slice_name=host.slice_name, host=host.host, reason=reason, lost=False))

    def report_started(self) -> None:
        """Every host runs its process: earlier failures are forgotten."""
        self._say(stream.StartedWell())

    def release(self, timeout_s: float = ANSWER_S) -> None:
        """Give everything back; on return Ray has been told. Releasing twice is not an error.

        Bounded: when the cluster itself is gone, there is nobody left to answer, and nothing left to free.
        """
        with self._changed:
            if self._released:
                return
            self._released = True
        self._say(stream.Release())
        with self._changed:
            self._changed.wait_for(lambda: self._over is not None or self._refusal is not None, timeout_s)
        if self._connection is not None or self._over is not None or self._refusal is not None:
            self._close()
        # else the book is not there: the thread goes on, and tells it when it is back

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.release()

    # -- waiting for the grant -------------------------------------------------------------------------

    def wait_until_held(
        self, timeout_s: float, waiting: Callable[[Diagnosis], None], alive: Callable[[], None]
    ) -> None:
        """See ``hold``; on any error nothing is held."""
        self._thread.start()
        told: stream.Waiting | None = None
        try:
            while True:
                with self._changed:
                    if not self._settled and self._waiting is told:
                        self._changed.wait(0.5)
                    if self._granted is not None:
                        return
                    if self._refusal is not None:
                        raise self._refusal
                    if self._over is not None:
                        raise LeaseEnded(self._request.owner, self._over)
                    news = self._waiting
                if news is not None and news is not told:
                    told = news
                    waiting(news.diagnosis)
                alive()
                if time.monotonic() >= self._deadline_s + REFUSAL_S:  # the book is not there to refuse it
                    if told is not None:
                        raise told.diagnosis.refusal()
                    raise DeadlineExceeded("the book of slices to answer", timeout_s)
        except BaseException:  # Ctrl-C included: a request that nobody waits for must not be served
            self.release(RETRY_S)
            raise

    @property
    def _settled(self) -> bool:
        return self._granted is not None or self._refusal is not None or self._over is not None

    # -- the stream ------------------------------------------------------------------------------------

    def _say(self, message: Any) -> None:
        connection = self._connection
        if connection is None:
            return
        try:
            with self._sending:
                connection.send(message)
        except (OSError, ValueError):
            return  # the reader notices, and comes back with what is known then

    def _run(self) -> None:
        while not self._closing and not self._forsaken:
            if not ray.is_initialized():  # asking for the book would start a new local Ray
                self._take(stream.Over("this process has disconnected from Ray"))
                return
            try:
                connection = self._connect()
            except (OSError, RayActorError, ValueError):
                self._note_absence()
                time.sleep(RETRY_S)
                continue
            except RaytpuError as error:
                with self._changed:
                    self._refusal = error
                    self._changed.notify_all()
                return
            self._connection = connection
            try:
                self._read(connection)
            except (EOFError, OSError):
                self._note_absence()
            finally:
                self._connection = None
                with self._sending:  # or whoever shuts it down hits another one that bears its number
                    connection.close()
            if self._over is not None or self._refusal is not None:
                return

    @property
    def _forsaken(self) -> bool:
        """Whether nobody waits any more for a book that does not come back."""
        absent_since_s = self._absent_since_s
        return self._released and absent_since_s is not None and time.monotonic() - absent_since_s > ANSWER_S

    def _note_absence(self) -> None:
        if self._absent_since_s is None:
            self._absent_since_s = time.monotonic()
        time.sleep(0 if self._closing else RETRY_S / 5)

    def _connect(self) -> Connection:
        address: stream.Address = ray.get(open_book().address.remote(), timeout=ANSWER_S)
        check_version(address.version)
        connection = stream.connect(address, ANSWER_S)
        left_s = max(0.0, self._deadline_s - time.monotonic())
        connection.send(
            stream.Ask(
                request=replace(self._request, deadline_s=left_s),
                session=self._session,
                must_exist=self._must_exist or self._granted is not None or self._released,
            )
        )
        if self._released:
            connection.send(stream.Release())
        return connection

    def _read(self, connection: Connection) -> None:
        heard_s = beat_s = time.monotonic()
        while self._over is None and self._refusal is None:
            # Not only on an idle stream: to a book that talks all the time its owner would seem silent.
            if time.monotonic() - beat_s >= stream.BEAT_S:
                beat_s = time.monotonic()
                with self._sending:
                    connection.send(stream.Beat())
            if connection.poll(max(0.0, beat_s + stream.BEAT_S - time.monotonic())):
                message = connection.recv()
                heard_s, self._absent_since_s = time.monotonic(), None
                self._take(message)
            elif time.monotonic() - heard_s > ANSWER_S:
                raise OSError("the book is silent")

    def _take(self, message: Any) -> None:
        with self._changed:
            match message:
                case stream.Granted():
                    self._granted = self._granted or message
                    # A book that was restarted may have died between noting a loss and telling of it.
                    self._lost |= dict(message.lease.lost)
                case stream.Waiting():
                    self._waiting = message
                case stream.Refused(error):
                    self._refusal = error
                case stream.Lost():
                    self._lost[message.slice_name] = message.reason
                case stream.Noticed():
                    self._notice = PreemptionNotice(by=message.by, until_s=time.monotonic() + message.seconds)
                case stream.Over(reason):
                    self._over = reason
                case stream.Done():
                    self._over = "released"
            self._changed.notify_all()

    def _close(self) -> None:
        self._closing = True
        connection = self._connection
        if connection is not None and threading.current_thread() is not self._thread:
            with self._sending:
                stream.shut(connection)
        if self._thread.is_alive():
            self._thread.join(RETRY_S * 4)


def hold(
    slices: Slices,
    *,
    owner: str,
    timeout_s: float = 60.0,
    priority: int = 0,
    save_s: float = 30.0,
    orphan_grace_s: float = 0.0,
    silence_s: float = 10.0,
    lease_id: str | None = None,
    waiting: Callable[[Diagnosis], None] = lambda _: None,
    alive: Callable[[], None] = lambda: None,
) -> Lease:
    """Hold whole slices of the cluster that this process is connected to, all or none; held on return.

    Args:
        slices: which slices, and how many.
        owner: who wants them, in words: what `raytpu slices` shows, such as the name of a run.
        timeout_s: for everything, from asking to holding.
        priority: band in the queue. A higher one goes first, and preempts lower ones when nothing else helps.
        save_s: time that this owner needs between a notice of preemption and the end of its lease.
        orphan_grace_s: how long the lease outlives this process, for a successor that knows its id.
        silence_s: an owner that is connected but frozen for this long counts as gone.
        lease_id: take over this lease, of an owner that is gone, instead of asking for slices.
        waiting: told why nothing is held yet, each time that the reason changes.
        alive: called about twice a second while waiting; may raise to end the wait.

    Raises:
        WrongRequest: this process is not connected to Ray, or a value is of another type or out of range.
        Unplaceable: at once, when waiting cannot help; or at the deadline, with the reason for each slice.
        Refused: the lease to take over has an owner that is alive; or Ray does not take the request at all.
        LeaseEnded: the lease to take over is gone.
        DeadlineExceeded: the book of slices did not answer.

    Example:
        >>> with raytpu.hold(Slices(generation="v6e", topology="4x4"), owner="my-job") as lease:
        ...     for host in lease.slices[0].hosts:
        ...         print(host.name, host.address, host.chips)
    """
    if not ray.is_initialized():
        raise WrongRequest("not connected to a Ray cluster; call ray.init(address=…) first")
    check_wish(
        slices=slices,
        owner=owner,
        priority=priority,
        lease_id=lease_id,
        timeout_s=timeout_s,
        save_s=save_s,
        orphan_grace_s=orphan_grace_s,
        silence_s=silence_s,
    )
    request = Request(
        id=lease_id if lease_id is not None else secrets.token_hex(8),
        owner=owner,
        want=slices,
        arrived=0,  # the book gives the number
        arrived_s=0.0,
        deadline_s=timeout_s,
        priority=priority,
        save_s=save_s,
        orphan_grace_s=orphan_grace_s,
        silence_s=silence_s,
        job=ray.get_runtime_context().get_job_id(),
    )
    lease = Lease(request, must_exist=lease_id is not None)
    lease.wait_until_held(timeout_s, waiting, alive)
    return lease
