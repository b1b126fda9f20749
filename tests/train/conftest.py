"""Members that average with each other, closed after the test."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from raytpu.train.replicas import array_layout
from raytpu.train.replicas.frames import TlsFiles
from tests.exchange_members import Members
from tests.tls_certificates import make_certificates


@pytest.fixture
def members(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Members]]:
    # So that arrays of 3 MB are several chunks for each owner.
    monkeypatch.setattr(array_layout, "CHUNK_BYTES", 1 << 19)
    made: list[Members] = []

    def make(names: str, tls: TlsFiles | None = None) -> Members:
        made.append(Members(names, tls))
        return made[-1]

    yield make
    for each in made:
        each.close()


@pytest.fixture(scope="module")
def tls_files(tmp_path_factory) -> TlsFiles:
    return make_certificates(tmp_path_factory.mktemp("tls"))
