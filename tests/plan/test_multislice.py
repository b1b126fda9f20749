from __future__ import annotations

import pytest

from raytpu.errors import SpecError
from raytpu.plan import Inventory, megascale_environment, plan_gang
from tests.plan.builders import slice_state, slices

INVENTORY = Inventory(slices=(slice_state("a"), slice_state("b")))


def test_every_host_of_a_slice_gets_the_index_of_the_slice() -> None:
    """Values left by an earlier gang make libtpu wait for slices that are gone (B4)."""
    processes = plan_gang(slices(2), INVENTORY).processes

    environments = [megascale_environment(process, "10.0.0.1") for process in processes]

    assert [environment["MEGASCALE_SLICE_ID"] for environment in environments] == ["0", "0", "1", "1"]
    assert environments[3] == {
        "MEGASCALE_COORDINATOR_ADDRESS": "10.0.0.1",
        "MEGASCALE_PORT": "8081",
        "MEGASCALE_NUM_SLICES": "2",
        "MEGASCALE_SLICE_ID": "1",
    }


def test_one_slice_needs_no_coordination_between_slices() -> None:
    """With the variables set, libtpu opens a DCN transport that nobody answers."""
    assert megascale_environment(plan_gang(slices(1), INVENTORY).processes[0], "10.0.0.1") == {}


@pytest.mark.parametrize("address", ["10.0.0.1:8476", "", "[::1]:80"])
def test_an_address_with_a_port_is_refused(address: str) -> None:
    """JAX's coordinator has a port of its own; two services on one port hang the start."""
    process = plan_gang(slices(2), INVENTORY).processes[0]

    with pytest.raises(SpecError, match="without a port"):
        megascale_environment(process, address)
