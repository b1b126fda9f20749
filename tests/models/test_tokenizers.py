"""Bytes as tokens."""

from __future__ import annotations

import numpy as np
import pytest

from raytpu.models import BytesTokenizer

TOKENIZER = BytesTokenizer()


@pytest.mark.parametrize("text", ["", "def f():\n\treturn 1\n", "Grüße, 世界 🌍", "\x00\x7f"])
def test_text_survives_encoding(text: str) -> None:
    """A tokenizer that loses characters trains on another corpus."""
    ids = TOKENIZER.encode(text)

    assert ids.dtype == np.int32
    assert ids.tolist() == list(text.encode())
    assert TOKENIZER.decode(ids) == text


def test_bytes_that_are_not_text_are_kept_and_shown_as_replacement() -> None:
    """A model emits invalid UTF-8 while it learns; that must not end the run."""
    assert TOKENIZER.encode(b"a\xff").tolist() == [97, 255]
    assert TOKENIZER.decode([97, 255, 98]) == "a\ufffdb"


def test_a_lone_surrogate_is_encoded() -> None:
    """Badly decoded files hold them, and one such file must not end the reading of a corpus."""
    assert TOKENIZER.encode("\udc80").tolist() == [0xED, 0xB2, 0x80]


def test_separators_are_left_out_of_text_and_other_ids_refused() -> None:
    """An id of another vocabulary, taken modulo 256, would read as nonsense with no error."""
    assert TOKENIZER.decode([TOKENIZER.separator, 97, TOKENIZER.separator]) == "a"
    with pytest.raises(ValueError, match="id 257 is not a byte"):
        TOKENIZER.decode([257])
    with pytest.raises(ValueError, match="id -1 is not a byte"):
        TOKENIZER.decode(np.array([-1]))
