"""Find the cluster's book of slices, or start it; and ask it."""

from __future__ import annotations

from importlib.metadata import version
from typing import Any

import ray
from ray.actor import ActorHandle
from ray.exceptions import GetTimeoutError, RayActorError, RayTaskError

from raytpu.errors import DeadlineExceeded, RaytpuError, Refused
from raytpu.gang.book import Book

BOOK_NAME = "raytpu-book"
BOOK_NAMESPACE = "raytpu"
"""Of the actor. Drivers of any namespace find it there."""

ASK_S = 30.0
"""For the book to answer. It does in milliseconds; a restart of its process takes seconds."""

_ON_THE_HEAD = {"node:__internal_head__": 0.001}
"""Ray's own mark of the head node. The book must not run on a host that it gives away."""


def open_book() -> ActorHandle:
    """The one book of this cluster. Returns at once; a first call waits for the actor to be up."""
    return (
        ray.remote(Book)
        .options(
            name=BOOK_NAME,
            namespace=BOOK_NAMESPACE,
            lifetime="detached",
            get_if_exists=True,
            num_cpus=0,
            resources=_ON_THE_HEAD,
            max_restarts=-1,
            max_task_retries=-1,
            max_concurrency=16,
        )
        .remote()
    )


def existing_book() -> ActorHandle | None:
    """The book of this cluster; ``None`` when nobody has started one."""
    try:
        return ray.get_actor(BOOK_NAME, namespace=BOOK_NAMESPACE)
    except ValueError:  # Ray's word for a name that nobody has
        return None


def check_version(of_book: str) -> None:
    """Two versions of raytpu do not understand each other's book.

    Raises:
        Refused: the book runs another version than this process.
    """
    mine = version("raytpu")
    if of_book != mine:
        raise Refused(
            f"this cluster's book of slices runs raytpu {of_book}, this process {mine}; "
            "use the same version on the head and here"
        )


def ask_book(book: ActorHandle, method: str, *arguments: Any) -> Any:
    """What a method of ``Book`` answers.

    Raises:
        Refused: the book refuses, runs another version of raytpu, or ended for good.
        DeadlineExceeded: it does not answer.
    """
    try:
        check_version(ray.get(book.address.remote(), timeout=ASK_S).version)
        return ray.get(getattr(book, method).remote(*arguments), timeout=ASK_S)
    except RayTaskError as error:
        if isinstance(error.cause, RaytpuError):
            raise error.cause from None
        raise
    except GetTimeoutError as error:
        raise DeadlineExceeded("the book of slices to answer", ASK_S) from error
    except RayActorError as error:
        raise Refused("the book of slices ended while it was asked; try again in a moment") from error
