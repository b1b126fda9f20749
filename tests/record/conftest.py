"""Run directories on each kind of storage."""

from __future__ import annotations

import uuid

import pytest

from raytpu.record import RunDirectory


@pytest.fixture(params=["local", "object store"])
def directory(request, tmp_path):
    root = str(tmp_path) if request.param == "local" else f"memory://{uuid.uuid4().hex}"
    return RunDirectory.newest(root, "demo")


@pytest.fixture
def local(tmp_path):
    return RunDirectory.newest(str(tmp_path), "demo")
