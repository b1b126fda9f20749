"""Find the cluster's book of slices, or start it."""

from __future__ import annotations

import ray
from ray.actor import ActorHandle

from raytpu.gang.book import Book

BOOK_NAME = "raytpu-book"
BOOK_NAMESPACE = "raytpu"
"""Of the actor. Drivers of any namespace find it there."""

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
