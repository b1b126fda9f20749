"""An owner of leases in a process of its own: does what it is told on stdin, and says what happens to it.

One JSON object a line, both ways; what it says goes to a pipe of its own, because Ray prints too. Times are
of the monotonic clock, which all processes of a machine share.
"""

from __future__ import annotations

import json
import os
import sys
import threading
import time
from typing import Any

import ray

from raytpu import Lease, Slices, hold
from raytpu.errors import LeaseEnded, RaytpuError, SliceLost

_ear = os.fdopen(int(sys.argv[2]), "w")
_saying = threading.Lock()
_leases: dict[str, Lease] = {}


def say(event: str, key: str, **facts: Any) -> None:
    line = json.dumps({"event": event, "key": key, "at_s": time.monotonic(), **facts})
    with _saying:
        print(line, file=_ear, flush=True)


def acquire(command: dict[str, Any]) -> None:
    key = command["key"]
    say("asked", key)
    try:
        lease = hold(Slices(**command["want"]), owner=key, silence_s=5, **command["options"])
    except RaytpuError as error:
        say("refused", key, kind=type(error).__name__, text=str(error))
        return
    _leases[key] = lease
    say("held", key, slices={held.name: len(held.hosts) for held in lease.slices}, groups=group_states(lease))
    watch(key, lease, command["obeys"])


def group_states(lease: Lease) -> dict[str, str]:
    return {held.name: ray.util.placement_group_table(held.placement_group)["state"] for held in lease.slices}


def watch(key: str, lease: Lease, obeys: bool) -> None:
    """Say what changes, until the lease ends; after a notice, ``obeys`` gives it back in time."""
    told: set[str] = set()
    noticed = False
    while key in _leases:
        lease.wait_for_change(0.2)
        for name, reason in lease.lost.items():
            if name not in told:
                told.add(name)
                say("lost", key, slice=name, reason=reason)
        if lease.notice is not None and not noticed:
            noticed = True
            say("noticed", key, by=lease.notice.by, seconds=lease.notice.seconds_left)
            if obeys:
                release(key)
                return
        try:
            lease.check()
        except SliceLost:
            pass  # said above; the rest is held until it is released
        except LeaseEnded as error:
            if _leases.pop(key, None) is not None:
                say("over", key, reason=str(error))


def release(key: str) -> None:
    lease = _leases.pop(key, None)
    if lease is not None:
        say("releasing", key)
        lease.release()
        say("released", key)


def main() -> None:
    ray.init(address=sys.argv[1], log_to_driver=False, logging_level="ERROR")
    say("ready", "")
    for line in sys.stdin:
        command = json.loads(line)
        work = acquire if command["do"] == "acquire" else lambda command: release(command["key"])
        threading.Thread(target=work, args=(command,), daemon=True).start()


if __name__ == "__main__":
    main()
