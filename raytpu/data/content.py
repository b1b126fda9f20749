"""A digest of documents in their order that does not depend on how they are grouped."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

# A Mersenne prime and a multiplier taken from the digits of the golden ratio: the digest of a sequence is a
# polynomial in the multiplier, so the digest of two parts follows from theirs.
_PRIME = (1 << 127) - 1
_MULTIPLIER = 0x9E3779B97F4A7C15F39CC0605CEDC834


@dataclass(frozen=True, slots=True)
class Content:
    """Digest of a sequence of documents: ``Content.of(a).then(Content.of(b)) == Content.of([*a, *b])``.

    Tells data apart that changed by accident; it is no protection against an adversary.
    """

    documents: int = 0
    digest: int = 0

    @staticmethod
    def of(documents: Iterable[np.ndarray]) -> Content:
        """Digest of documents given as arrays of token ids, whatever their integer type."""
        count = digest = 0
        for tokens in documents:
            raw = np.ascontiguousarray(tokens, dtype="<u4")
            one = int.from_bytes(hashlib.blake2b(raw.data, digest_size=16).digest(), "little")
            digest = (digest * _MULTIPLIER + one) % _PRIME
            count += 1
        return Content(count, digest)

    def then(self, later: Content) -> Content:
        """Digest of these documents followed by ``later``."""
        moved = self.digest * pow(_MULTIPLIER, later.documents, _PRIME)
        return Content(self.documents + later.documents, (moved + later.digest) % _PRIME)

    def __str__(self) -> str:
        return f"{self.documents}:{self.digest:032x}"

    @staticmethod
    def parse(text: str) -> Content:
        """The digest that ``str`` wrote."""
        documents, _, digest = text.partition(":")
        return Content(int(documents), int(digest, 16))
