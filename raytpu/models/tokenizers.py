"""Text to token ids and back. Importing this loads NumPy, no JAX."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np


class BytesTokenizer:
    """UTF-8 bytes as ids 0 to 255, and one id that ends a document.

    Lossless on any input, needs no files, and its loss reads as nats per byte. A model pads
    ``vocab_size`` to its own multiple (``ModelConfig.padded_vocab_size``: 384).
    """

    separator: int = 256
    """Follows every document in a packed stream."""
    vocab_size: int = 257

    def encode(self, text: str | bytes) -> np.ndarray:
        """Ids as int32 ``[bytes]``, without a separator.

        A lone surrogate (which a file name or a badly decoded file may hold) is written as the three
        bytes it would have, so that no text is refused.
        """
        raw = text.encode("utf-8", errors="surrogatepass") if isinstance(text, str) else text
        return np.frombuffer(raw, dtype=np.uint8).astype(np.int32)

    def decode(self, ids: Iterable[int] | np.ndarray) -> str:
        """The text of ``ids``; separators are left out, invalid UTF-8 becomes U+FFFD.

        Raises:
            ValueError: for an id that is neither a byte nor the separator.
        """
        array = np.asarray(ids if isinstance(ids, np.ndarray) else list(ids), dtype=np.int64)
        wrong = array[(array < 0) | (array > self.separator)]
        if wrong.size:
            raise ValueError(
                f"id {int(wrong[0])} is not a byte (0 to 255) or the separator ({self.separator})"
            )
        return array[array != self.separator].astype(np.uint8).tobytes().decode("utf-8", errors="replace")
