"""A run of replicas from the driver: hold the slices, look after them, end when all have ended.

Ray Train restarts its workers all together, so it has no part in this: the hosts are actors of raytpu's own.
"""

from __future__ import annotations

import time
from typing import Any

import ray
from ray.exceptions import RayActorError, RayTaskError
from ray.train import Result

from raytpu.errors import HostLost, LeaseEnded, ProgramFailed, RunFailed, RunStopped
from raytpu.record import PhaseTimed, StateChanged
from raytpu.spec import Replicas
from raytpu.train.ray_train_seam import result_of
from raytpu.train.replicas.departures import Departures
from raytpu.train.replicas.replica import lease_end
from raytpu.train.replicas.staffing import Staff
from raytpu.train.training import Training, hold_for

LOOK_S = 0.2

LEASE_PATIENCE_S = 2.0
"""For the book to say that a lease has ended: its owner hears of it within a second of coming back."""


def run_replicas(training: Training, settings: Replicas) -> Result:
    """Train once, on slices that are replicas. Every slice and process is free again at the end.

    Raises:
        Unplaceable, DeadlineExceeded: the slices could not be held.
        WrongRequest: the data cannot be read, or the checkpoint is of another model.
        RunFailed: the program raised, or replicas were lost all at once or more often than allowed.
        RaytpuError: whatever ``stop_requested`` raised.
    """
    log = training.log
    log.write(StateChanged(state="holding slices"))
    began = time.perf_counter()
    with hold_for(training) as lease:
        log.write(PhaseTimed(name="hold slices", seconds=time.perf_counter() - began))
        log.write(StateChanged(state="starting hosts"))
        ended = _Run(training, Staff(training, lease, settings)).to_its_end()
    last = max(ended, key=lambda each: each["metrics"]["step"] if each else -1)
    return result_of(training.run_config, last.get("metrics", {}), last.get("path"))


class _Run:
    def __init__(self, training: Training, staff: Staff) -> None:
        self._training, self._staff = training, staff
        self._departures = Departures(training, staff)

    def to_its_end(self) -> list[dict[str, Any]]:
        """What each host of the replicas that have the state returned, once all of them have."""
        try:
            return self._look_after_all()
        except RunFailed as error:
            raise self._lease_end_behind(error) or error from None
        finally:
            self._departures.close()
            self._staff.stop()

    def _look_after_all(self) -> list[dict[str, Any]]:
        while True:
            self._training.stop_requested()
            self._staff.check()
            self._check_leases()
            self._departures.look()
            ended = self._ended()
            if ended is not None:
                return ended
            self._check_coordinator()
            time.sleep(LOOK_S)

    def _lease_end_behind(self, error: RunFailed) -> LeaseEnded | None:
        """A driver that was frozen loses its replicas before it hears that its lease has ended, and why."""
        if isinstance(error, RunStopped | ProgramFailed):
            return None
        until_s = time.monotonic() + LEASE_PATIENCE_S
        while True:
            ended = next(filter(None, map(lease_end, self._staff.leases())), None)
            if ended is not None or time.monotonic() >= until_s:
                return ended
            time.sleep(LOOK_S)

    def _check_coordinator(self) -> None:
        try:
            self._staff.coordinator.check()
        except HostLost:
            self._staff.raise_own_failure()
            raise

    def _check_leases(self) -> None:
        """What the book knows sooner, such as a host that is down with everything on it; and what it wants.

        Of several leases, one that is announced to end is given up: the others go on. When all slices go, the
        hosts save a last step together and end.
        """
        living = self._staff.living()
        for replica in living:
            ended = lease_end(replica.lease)
            reason = replica.lease.lost.get(replica.held.name) or (ended.reason if ended else None)
            notice = replica.lease.notice
            if reason is None and notice is not None:
                if any(other.lease.notice is None for other in living):
                    reason = f"its slice goes to {notice.by}"
                else:
                    self._departures.save_and_end(f"its slices go to {notice.by}", notice.seconds_left)
            if reason is not None:
                self._staff.coordinator.give_up(replica.member, reason)

    def _ended(self) -> list[dict[str, Any]] | None:
        view = self._staff.coordinator.view
        if view is None:
            return None
        full = [each for each in self._staff.living() if each.member in view.full]
        references = [reference for replica in full for reference in replica.running]
        if not references or len(references) < sum(len(replica.hosts) for replica in full):
            return None
        self._staff.raise_own_failure(references)
        done, rest = ray.wait(references, num_returns=len(references), timeout=0)
        if rest:
            return None
        try:
            return ray.get(done)
        except (RayActorError, RayTaskError):
            return None  # a death that the coordinator is about to hear of
