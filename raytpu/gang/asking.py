"""What a request for slices may say. Owners are checked before they ask, and the book checks once more: a
request that it cannot serve must not end it, and with it the queue of everybody else."""

from __future__ import annotations

import sys
from collections.abc import Iterator

from raytpu.errors import WrongRequest
from raytpu.gang import stream
from raytpu.plan.ledger import Request
from raytpu.spec import Slices

LEAST_S = {"silence_s": 3 * stream.BEAT_S}
"""An owner beats once a second: three missed beats are the least that can mean something."""


def check_wish(
    *, slices: object, owner: object, priority: object, lease_id: object, **seconds: object
) -> None:
    """Make sure that values of ``hold`` are of their types and in their ranges.

    Args:
        lease_id: ``None`` when no lease is taken over.
        seconds: durations, by name.

    Raises:
        WrongRequest: with everything that is wrong.
    """
    wrong = [*_wrong_words(slices, owner, priority, lease_id), *_wrong_seconds(seconds)]
    if wrong:
        raise WrongRequest(f"hold: {'; '.join(wrong)}")


def check_ask(ask: stream.Ask) -> None:
    """Make sure that the book can work with what an owner sent.

    Raises:
        WrongRequest: with everything that is wrong.
    """
    request: object = ask.request
    if not isinstance(request, Request) or not isinstance(ask.session, str):
        raise WrongRequest(f"hold: what was sent is no request of this raytpu: {ask!r:.200}")
    check_wish(
        slices=request.want,
        owner=request.owner,
        priority=request.priority,
        lease_id=request.id if request.id is not None else "",
        timeout_s=request.deadline_s,
        save_s=request.save_s,
        orphan_grace_s=request.orphan_grace_s,
        silence_s=request.silence_s,
    )


def _wrong_words(slices: object, owner: object, priority: object, lease_id: object) -> Iterator[str]:
    if not isinstance(slices, Slices):
        yield f"slices is {_shown(slices)}, expected raytpu.Slices"
    if not isinstance(owner, str) or not owner.strip():
        yield f"owner is {_shown(owner)}, expected a text that says who wants the slices"
    if isinstance(priority, bool) or not isinstance(priority, int):
        yield f"priority is {_shown(priority)}, expected a whole number"
    if lease_id is not None and (not isinstance(lease_id, str) or not lease_id):
        yield f"lease_id is {_shown(lease_id)}, expected the id of a lease, or None"


def _wrong_seconds(seconds: dict[str, object]) -> Iterator[str]:
    for name, value in seconds.items():
        least = LEAST_S.get(name, 0)
        # The upper bound is for whole numbers that no clock can be added to; infinity is below it by intent.
        if (
            isinstance(value, bool)
            or not isinstance(value, int | float)
            or not value >= least
            or (isinstance(value, int) and value > sys.float_info.max)
        ):
            yield f"{name} is {_shown(value)}, expected {least:g} s or more"


def _shown(value: object) -> str:
    return f"{value!r:.60}"
