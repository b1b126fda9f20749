"""What Ray's account of a dead actor says, in few words. Pure.

Ray 2.60 knows the exit code of a process only when Python ended it (``sys.exit``). ``os._exit``, a signal and
the kernel's out-of-memory killer all look alike to it: a connection that ended, "error code 2".
"""

from __future__ import annotations

import re

INTENDED_DEATH = "ray.kill"
"""Ray names the call when an actor was killed on purpose; such a death is an effect, not a cause."""

TAKEN_BACK = "placement group was removed"
"""Ray ends what runs on a slice when the book of slices takes it back."""

_EXIT_CODE = re.compile(r"exit(?:s|ed)?(?: with an)?,? exit code (-?\d+)")
_UNEXPECTED = ("its worker process has died", "The actor died unexpectedly")


def is_intended(account: str) -> bool:
    """Whether the actor was killed on purpose."""
    return INTENDED_DEATH in account


def is_taken_back(account: str) -> bool:
    """Whether the actor was ended because its slice is not held any more."""
    return TAKEN_BACK in account


def in_words(account: str) -> str:
    """One clause about the process of a host. What is no account of a death is left as it is."""
    if is_taken_back(account):
        return "its process was ended, because its slice was taken back"
    if is_intended(account):
        return "its process was killed on purpose"
    if found := _EXIT_CODE.search(account):
        code = int(found[1])
        return f"its process ended ({f'exit code {code}' if code >= 0 else f'killed by signal {-code}'})"
    if "its node has died" in account:
        return "Ray counts its node as dead"
    if any(words in account for words in _UNEXPECTED):
        return "its process ended unexpectedly"
    return account
