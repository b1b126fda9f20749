"""Notice the death of a host process, by one outstanding ping to each."""

from __future__ import annotations

import time
from collections.abc import Sequence

import ray
from ray.exceptions import RayActorError, RayTaskError

from raytpu.errors import HostLost
from raytpu.gang import Host
from raytpu.train.endings import is_intended


class HostWatch:
    """Deaths seen so far, by host name. Ray reported a killed actor after 0.06 to 0.35 s when measured."""

    def __init__(self, hosts: Sequence[Host]) -> None:
        self._hosts = {host.name: host for host in hosts}
        self._pings: dict[ray.ObjectRef, str] = {host.actor.ping.remote(): host.name for host in hosts}
        self.deaths: dict[str, str] = {}

    def look(self) -> None:
        """Collect the answers there are, without waiting."""
        done, _ = (
            ray.wait(list(self._pings), num_returns=len(self._pings), timeout=0) if self._pings else ([], [])
        )
        for reference in done:
            name = self._pings.pop(reference)
            try:
                ray.get(reference)
            except (RayActorError, RayTaskError) as error:
                self.deaths.setdefault(name, " ".join(str(error).split()))
                continue
            self._pings[self._hosts[name].actor.ping.remote()] = name

    def raise_lost(self) -> None:
        """Raise HostLost when a host process has died that nobody killed on purpose."""
        self.look()
        lost = {name: death for name, death in self.deaths.items() if not is_intended(death)}
        if lost:
            raise HostLost(f"lost {', '.join(sorted(lost))}: {next(iter(lost.values()))}")

    def settle(self, patience_s: float) -> None:
        """Give Ray a moment to report a death that explains an error already seen."""
        until = time.monotonic() + patience_s
        while time.monotonic() < until and not any(not is_intended(death) for death in self.deaths.values()):
            self.look()
            time.sleep(0.1)
