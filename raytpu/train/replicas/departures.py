"""Replicas whose slices go away: they leave at the end of a step, or the last of them saves in time.

``plan.hand_over`` decides which, and when.
"""

from __future__ import annotations

import threading
import time

from raytpu.plan.hand_over import Leave, SaveNow, TrainOn, leaving_replicas
from raytpu.train.farewell import LastSave
from raytpu.train.notice_watch import Going, NoticeWatch, first_to_go
from raytpu.train.replicas.replica import Replica
from raytpu.train.replicas.staffing import Staff
from raytpu.train.training import Training

RETRY_S = 1.0
"""After a last save that was not agreed on."""


class Departures:
    """Listens in a thread of its own, until ``close``; acts at each ``look``, in the caller's."""

    def __init__(self, training: Training, staff: Staff) -> None:
        self._training, self._staff = training, staff
        self._last: LastSave | None = None
        self._saving: threading.Thread | None = None
        self._began_s = float("-inf")
        self._leaving: set[str] = set()
        self._notices = NoticeWatch(
            lambda: [replica.held for replica in staff.present()],
            lambda: [host for replica in staff.present() for host in replica.hosts if replica.running],
            training.recovery,
            training.log,
        )

    def close(self) -> None:
        """Listen no more."""
        if self._last is not None:
            self._last.close()
        self._notices.close()

    def look(self) -> None:
        """Do what notices ask for now."""
        going, view = self._notices.going(), self._staff.coordinator.view
        replicas = {each.member: each for each in self._staff.present() if each.held.name in going}
        notices = {member: going[each.held.name] for member, each in replicas.items()}
        if not notices or view is None or self._ends:
            return
        for member, replica in replicas.items():
            self._expect(replica, notices[member])
        act = leaving_replicas(
            {member: each.seconds_left for member, each in notices.items()},
            view.full,
            parts=self._staff.parts,
            pace=self._notices.pace,
        )
        match act:
            case Leave(members=members):
                for member in members:
                    if member not in self._leaving:
                        self._leaving.add(member)
                        self._staff.coordinator.leave(member, notices[member].reason)
            case SaveNow() if self._training.with_checkpoints:
                first = first_to_go({member: notices[member] for member in view.full})
                reason = f"every slice that has the state goes away ({first.reason})"
                self.save_and_end(reason, first.seconds_left)
            case SaveNow() | TrainOn():
                return

    def save_and_end(self, reason: str, seconds_left: float) -> None:
        """Let all hosts make a last save after the same step and end, unless they are about to."""
        now_s = time.monotonic()
        if self._ends or now_s - self._began_s < RETRY_S:
            return
        self._began_s = now_s
        # Those that join are asked too, or they would wait for the others after their end.
        hosts = [host for each in self._staff.living() if each.running for host in each.hosts]
        last = self._last = LastSave(hosts, self._training.log)
        self._saving = threading.Thread(
            target=last.save, args=(reason, seconds_left), name="raytpu-farewell", daemon=True
        )
        self._saving.start()

    @property
    def _ends(self) -> bool:
        """A last step is agreed on, or being agreed on."""
        agreed = self._last is not None and self._last.step is not None
        return agreed or (self._saving is not None and self._saving.is_alive())

    def _expect(self, replica: Replica, going: Going) -> None:
        if replica.reserve:  # nobody waits for it
            self._staff.coordinator.give_up(replica.member, going.reason)
        elif not replica.leaving:
            self._staff.expect_to_leave(replica)
