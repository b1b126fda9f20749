"""A gang in lockstep that is told in time: it saves, ends, and goes on elsewhere without losing a step.

``plan.hand_over`` decides when. What follows the save is what follows the loss of the slices that go away.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Sequence

from raytpu.errors import RaytpuError, RunFailed, RunStopped, SliceLost
from raytpu.gang import Holding, Host
from raytpu.gang.release import RELEASE_S
from raytpu.plan.hand_over import SaveNow, TrainOn, last_save
from raytpu.record import EventLog
from raytpu.spec import Recovery
from raytpu.train.farewell import LastSave, SaveOnNotice
from raytpu.train.notice_watch import LOOK_S, Going, NoticeWatch, first_to_go

_log = logging.getLogger(__name__)


class HandOver:
    """Looks after one attempt, in threads of its own, until ``close``.

    Args:
        holding: the slices of the run.
        hosts: of the attempt.
        recovery: of the workload.
        saves: whether the run keeps checkpoints; without them there is nothing to be won.
        log: of the driver.
    """

    def __init__(
        self, holding: Holding, hosts: Sequence[Host], recovery: Recovery, *, saves: bool, log: EventLog
    ) -> None:
        self._holding, self._hosts = holding, hosts
        self._last = LastSave(hosts, log)
        self._to_others = SaveOnNotice(lambda: holding.notice, self._last)
        self._notices = NoticeWatch(lambda: (*holding.slices, *holding.spares), lambda: hosts, recovery, log)
        self._reasons: list[str] = []
        """That were proposed to the hosts; a priority may have been first with another one."""
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._work, name="raytpu-hand-over", daemon=True)
        if saves:
            self._thread.start()

    def look(self) -> None:
        """When the slices go to somebody of higher priority, let the hosts save and end."""
        self._to_others.look()

    def close(self) -> None:
        """The attempt is over."""
        self._closed.set()
        self._last.close()
        self._notices.close()
        if self._thread.is_alive():
            self._thread.join(RELEASE_S)

    def explained(self, error: RaytpuError) -> RaytpuError:
        """``error``, or the loss of slices when it is the end that was agreed on because they go away.

        They are dropped here, so that others take their place.
        """
        reason = next((each for each in self._reasons if each in str(error)), None)
        if not isinstance(error, RunStopped) or reason is None:
            return error
        _, _, saved = str(error).partition(reason)
        for each in self._of_the_gang().values():
            host = next(host for host in self._hosts if host.name == each.host)
            self._holding.drop(host.assignment, f"it goes away: {each.source}{saved}")
        return SliceLost(self._holding.lost)

    def _work(self) -> None:
        while not self._closed.wait(LOOK_S):
            try:
                if self._saved():
                    return
            except Exception as error:  # the thread's boundary: the next look may find Ray as it was
                if not self._closed.is_set():
                    _log.warning("the hand-over is tried again: %s", error)

    def _saved(self) -> bool:
        going = self._of_the_gang()
        if not going:
            return False
        first = first_to_go(going)
        act = last_save(
            first.seconds_left, spares_ready=self._spares_ready(len(going)), pace=self._notices.pace
        )
        match act:
            case SaveNow():
                reason = f"{', '.join(going)}: {first.reason}"
                self._reasons.append(reason)
                return self._last.save(reason, first.seconds_left)
            case TrainOn():  # a slice may become free meanwhile
                return False

    def _of_the_gang(self) -> dict[str, Going]:
        going, gang = self._notices.going(), {each.name for each in self._holding.slices}
        return {name: each for name, each in going.items() if name in gang}

    def _spares_ready(self, count: int) -> bool:
        """Whether as many slices are held in reserve, by now; some of those may go away themselves."""
        going = self._notices.going()
        for spare in self._holding.spares:
            if spare.name in going:
                host = next(host for host in spare.hosts if host.name == going[spare.name].host)
                self._holding.drop(host.assignment, f"it goes away: {going[spare.name].source}")
        self._holding.reserve(count, self._alive)
        return len(self._holding.spares) >= count

    def _alive(self) -> None:
        if self._closed.is_set():
            raise RunFailed("the attempt is over")
