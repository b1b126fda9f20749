"""A last save that all hosts make at the same step, agreed on while they run.

A save is collective: every host must make it at the same step. When the driver learns that the slices will be
taken away, the hosts are between two steps, and not all at the same one. So it proposes a step a little ahead
of the foremost host; a host that reaches it waits there until the driver says whether all have accepted.
Nobody saves alone, and nobody waits long: the answer is on its way when the question is.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from functools import partial

from raytpu.errors import RaytpuError
from raytpu.gang import Host, PreemptionNotice, call_hosts
from raytpu.record import EventLog, StateChanged

MARGIN = 2
"""Steps between the foremost host and the proposed one: a step may end while the question travels."""

TRIES = 5
"""Proposals before giving up. Each fails only when a host passed ``MARGIN`` steps within one question."""

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
        self.reason = ""

    def current_step(self) -> int:
        """The last step that the train loop has finished."""
        with self._changed:
            return self._step

    def steps(self) -> tuple[int, int]:
        """The last step that is done, and how many of the steps were done by this process."""
        with self._changed:
            return self._step, self._step - self._first

    def resume_at(self, step: int) -> None:
        """Steps up to ``step`` were done by an earlier attempt."""
        with self._changed:
            self._step = self._first = step

    def propose(self, step: int) -> bool:
        """Whether ``step`` is still ahead; if so, the train loop will not pass it before ``decide``."""
        with self._changed:
            if step <= self._step:
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
            if self._proposed is not None and step >= self._proposed:
                self._changed.wait_for(lambda: self._proposed is None, DECISION_S)
                self._proposed = None
            return self._last is not None and step >= self._last


class SaveOnNotice:
    """The driver's side: once slices of the gang are under notice, lets the hosts save and end.

    It does so in a thread of its own. ``notice`` is asked for one at each look.
    """

    def __init__(
        self, notice: Callable[[], PreemptionNotice | None], hosts: Sequence[Host], log: EventLog
    ) -> None:
        self._notice, self._hosts, self._log = notice, hosts, log
        self._begun = False

    def look(self) -> None:
        """Begin, if there is a notice and this has not begun."""
        notice = self._notice()
        if notice is not None and not self._begun:
            self._begun = True
            threading.Thread(target=self._save, args=(notice,), name="raytpu-farewell", daemon=True).start()

    def _save(self, notice: PreemptionNotice) -> None:
        reason = f"its slices go to {notice.by}"
        self._log.write(
            StateChanged(state="preempted", reason=f"{reason} in {notice.seconds_left:.0f} s; saving")
        )
        try:
            step = agree_on_last_step(self._hosts, reason, max(1.0, notice.seconds_left))
        except (
            RaytpuError
        ) as error:  # the attempt ends by its own signs; this only tells why nothing was saved
            self._log.write(StateChanged(state="preempted", reason=f"no last save: {error}"))
            return
        if step is None:
            self._log.write(StateChanged(state="preempted", reason="no last save: no step was agreed on"))


def agree_on_last_step(hosts: Sequence[Host], reason: str, deadline_s: float) -> int | None:
    """Let every host save and end after the same step; that step, or ``None`` when they could not agree.

    Raises:
        DeadlineExceeded, HostLost: a host did not answer.
    """
    ask = partial(call_hosts, hosts, waited_for="the hosts to agree on a last step", deadline_s=deadline_s)
    for _ in range(TRIES):
        step = max(ask("current_step")) + MARGIN
        accepted: list[bool] = [False]
        try:
            accepted = ask("propose_last_step", step)
        finally:
            ask("decide_last_step", step, all(accepted), reason)
        if all(accepted):
            return step
    return None
