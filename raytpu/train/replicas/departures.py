"""Replicas whose slices go away: they leave at the end of a step, or the last of them saves in time.

``plan.hand_over`` decides which, and when.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping

from raytpu.plan.hand_over import Leave, SaveNow, TrainOn, leaving_replicas
from raytpu.train.farewell import LastSave
from raytpu.train.notice_watch import Going, NoticeWatch, first_to_go
from raytpu.train.replicas.replica import Replica
from raytpu.train.replicas.staffing import Staff
from raytpu.train.training import Training


class Departures:
    """Listens in a thread of its own, until ``close``; acts at each ``look``, in the caller's."""

    def __init__(self, training: Training, staff: Staff) -> None:
        self._training, self._staff = training, staff
        self._last: LastSave | None = None
        self._saving: threading.Thread | None = None
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
        if not notices or view is None or (self._saving is not None and self._saving.is_alive()):
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
                self._save_and_end({member: notices[member] for member in view.full})
            case SaveNow() | TrainOn():
                return

    def _expect(self, replica: Replica, going: Going) -> None:
        if replica.reserve:  # nobody waits for it
            self._staff.coordinator.give_up(replica.member, going.reason)
        elif not replica.leaving:
            self._staff.expect_to_leave(replica)

    def _save_and_end(self, notices: Mapping[str, Going]) -> None:
        first = first_to_go(notices)
        hosts = [host for each in self._staff.living() if each.member in notices for host in each.hosts]
        last = self._last = LastSave(hosts, self._training.log)
        reason = f"every slice that has the state goes away ({first.reason})"
        self._saving = threading.Thread(
            target=last.save, args=(reason, first.seconds_left), name="raytpu-farewell", daemon=True
        )
        self._saving.start()
