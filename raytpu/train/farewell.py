"""A last save that all hosts make at the same step, agreed on while they run.

A save is collective: every host must make it at the same step. When the driver learns that the slices will be
taken away, the hosts are between two steps, and not all at the same one. So it proposes a step a little ahead
of the foremost host; a host that reaches it waits there until the driver says whether all have accepted.
Nobody saves alone, and nobody waits long: the answer is on its way when the question is.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial

from ray.exceptions import RayError

from raytpu.errors import HostLost, RaytpuError, RunFailed
from raytpu.gang import Host, PreemptionNotice, call_hosts
from raytpu.plan.hand_over import Pace
from raytpu.record import EventLog, StateChanged

MARGIN = 2
"""Steps between the foremost host and the proposed one: a step may end while the question travels."""

TRIES = 7
"""Proposals before giving up. Each fails only when a host passed that many steps within one question, and the
next one is twice as far ahead: the last one 128 steps, which takes a second where a step takes 8 ms."""

STEPS_TIMED = 20
"""Over which a step's usual time is counted, whatever else happens between the steps."""

DECISION_S = 10.0
"""For a host to wait at a proposed step. A driver that is silent for so long is gone; training goes on."""


class Farewell:
    """One host's side: called by its train loop and, from other threads, by the driver."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._step = 0
        self._first = 0
        self._proposed: int | None = None
        self._last: int | None = None
        self._ends_s: deque[float] = deque(maxlen=STEPS_TIMED + 1)
        self._save_s: float | None = None
        self.reason = ""

    def current_step(self) -> int:
        """The last step that the train loop has finished."""
        with self._changed:
            return self._step

    def steps(self) -> tuple[int, int]:
        """The last step that is done, and how many of the steps were done by this process."""
        with self._changed:
            return self._step, self._step - self._first

    def pace(self) -> Pace:
        """How long steps and the last save took."""
        with self._changed:
            ends_s = list(self._ends_s)
            step_s = (ends_s[-1] - ends_s[0]) / (len(ends_s) - 1) if len(ends_s) > 1 else 0.0
            return Pace(step_s=step_s, save_s=self._save_s)

    def saved(self, seconds: float) -> None:
        """A save took so long until it was durable."""
        with self._changed:
            self._save_s = seconds

    def resume_at(self, step: int) -> None:
        """Steps up to ``step`` were done by an earlier attempt."""
        with self._changed:
            self._step = self._first = step

    def propose(self, step: int) -> bool:
        """Whether ``step`` is still ahead; if so, the train loop will not pass it before ``decide``.

        A step that was agreed on stays the last one: another host may be at its end already.
        """
        with self._changed:
            if step <= self._step or self._last is not None:
                return False
            self._proposed = step
            return True

    def decide(self, step: int, agreed: bool, reason: str) -> None:
        """Whether all hosts accepted ``step``: then it is the last one."""
        with self._changed:
            if self._proposed == step:
                self._proposed = None
                if agreed:
                    self._last, self.reason = step, reason
                self._changed.notify_all()

    def passed(self, step: int) -> None:
        """Called at the end of each step."""
        with self._changed:
            self._step = step

    def is_last(self, step: int) -> bool:
        """Called at the end of each step that can be saved: whether the run ends here, after a save."""
        with self._changed:
            self._step = step
            self._ends_s.append(time.monotonic())
            if self._proposed is not None and step >= self._proposed:
                self._changed.wait_for(lambda: self._proposed is None, DECISION_S)
                self._proposed = None
            return self._last is not None and step >= self._last


class LastSave:
    """The driver's side: lets the hosts of a gang make their last save and end. Once."""

    def __init__(self, hosts: Sequence[Host], log: EventLog) -> None:
        self._hosts, self._log = hosts, log
        self._lock, self._over = threading.Lock(), threading.Event()
        self.step: int | None = None
        """The last one, once it is agreed on."""

    def close(self) -> None:
        """The hosts are at their end anyway: wait for no more answers."""
        self._over.set()

    def save(self, reason: str, seconds_left: float) -> bool:
        """Whether all hosts will end after the same step, soon, whoever asked. Waits for their answers."""
        with self._lock:
            if self.step is None:
                self._log.write(
                    StateChanged(state="preempted", reason=f"{reason} in {seconds_left:.0f} s; saving")
                )
                self.step = self._agreed(reason, max(1.0, seconds_left))
            return self.step is not None

    def _agreed(self, reason: str, deadline_s: float) -> int | None:
        why = "no step was agreed on"
        try:
            step = agree_on_last_step(self._hosts, reason, deadline_s, self._raise_when_over)
        except (RaytpuError, RayError) as error:  # the attempt ends by its own signs; this only tells
            step, why = None, str(error).splitlines()[0]
        if step is None and not self._over.is_set():
            self._log.write(StateChanged(state="preempted", reason=f"no last save: {why}"))
        return step

    def _raise_when_over(self) -> None:
        if self._over.is_set():
            raise RunFailed("the attempt is over")


class SaveOnNotice:
    """Once the slices of the gang go to somebody else, lets the hosts save and end, in a thread of its own.

    ``notice`` is asked for one at each look.
    """

    def __init__(self, notice: Callable[[], PreemptionNotice | None], last: LastSave) -> None:
        self._notice, self._last = notice, last
        self._begun = False

    def close(self) -> None:
        """See ``LastSave``."""
        self._last.close()

    def look(self) -> None:
        """Begin, if there is a notice and this has not begun."""
        notice = self._notice()
        if notice is not None and not self._begun:
            self._begun = True
            threading.Thread(
                target=self._last.save,
                args=(f"its slices go to {notice.by}", notice.seconds_left),
                name="raytpu-farewell",
                daemon=True,
            ).start()


def agree_on_last_step(
    hosts: Sequence[Host], reason: str, deadline_s: float, alive: Callable[[], None]
) -> int | None:
    """Let every host save and end after the same step; that step, or ``None`` when they could not agree.

    ``alive`` is called about twice a second while their answers are awaited; it may raise to end the wait.

    Raises:
        DeadlineExceeded, HostLost: a host did not answer.
    """
    ask = partial(
        call_hosts,
        hosts,
        waited_for="the hosts to agree on a last step",
        deadline_s=deadline_s,
        alive=alive,
    )
    for tries in range(TRIES):
        step = max(ask("current_step")) + (MARGIN << tries)
        accepted: list[bool] = [False]
        try:
            accepted = ask("propose_last_step", step)
        finally:
            _tell_decision(ask, step, all(accepted), reason)
        if all(accepted):
            return step
    return None


def _tell_decision(ask: Callable[..., object], step: int, agreed: bool, reason: str) -> None:
    try:
        ask("decide_last_step", step, agreed, reason)
    except HostLost:
        if not agreed:
            raise
        # It has reached all: a host that is gone by now may have followed it to the end.
