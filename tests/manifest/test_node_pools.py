"""The node pools fit the manifests."""

from __future__ import annotations

import re

import pytest

from raytpu.manifest import node_pool_script
from raytpu.topology import SliceShape, slice_shape, slice_shapes
from tests.manifest.workloads import of_shape, plan

ONE_HOST = slice_shape("v6e", "2x4", 8)


def flags(script: str) -> list[str]:
    """Those of the pools, not of the function that makes them."""
    return re.findall(r"^ +(--[\w-]+(?:=\S+)?)", script.partition("\n}\n")[2], flags=re.MULTILINE)


def test_a_slice_of_several_hosts_is_a_pool_of_its_own() -> None:
    """GKE brings up all nodes of such a pool or none: two slices in one pool would be one larger slice."""
    script = node_pool_script(plan("slices.count=2", "cluster.max_slices=3"))

    assert "for index in $(seq 0 2); do" in script
    assert 'create_pool "v6e-4x4-4t-$index"' in script
    assert {"--machine-type=ct6e-standard-4t", "--tpu-topology=4x4", "--max-nodes=4"} <= set(flags(script))


def test_slices_of_one_host_share_a_pool() -> None:
    script = node_pool_script(of_shape(ONE_HOST, 3))

    assert "create_pool v6e-2x4-8t " in script
    assert {"--machine-type=ct6e-standard-8t", "--total-max-nodes=3"} <= set(flags(script))
    assert not any(flag.startswith("--tpu-topology") for flag in flags(script))


@pytest.mark.parametrize(
    ("setting", "expected"),
    [
        ("cluster.spot=true", {"--spot"}),
        ("cluster.reservation=mine", {"--reservation-affinity=specific", "--reservation=mine"}),
        (
            "cluster.queue={name: q, flex_start: true}",
            {
                "--flex-start",
                "--enable-queued-provisioning",
                "--reservation-affinity=none",
                "--no-enable-autorepair",
            },
        ),
        (
            "cluster.multislice_network=true",
            {
                "--accelerator-network-profile=auto",
                "--node-labels=cloud.google.com/gke-networking-dra-driver=true",
            },
        ),
        ("cluster.queue={name: q}", set()),
    ],
)
def test_pools_are_made_as_the_pods_select_them(setting: str, expected: set[str]) -> None:
    """Pods that select spot nodes wait for ever beside a pool that is none."""
    plain = set(flags(node_pool_script(plan())))

    assert set(flags(node_pool_script(plan(setting)))) - plain == expected


@pytest.mark.parametrize(
    "shape", [slice_shapes(name)[-1] for name in ("v4", "v5e", "v5p", "v6e", "v7x")], ids=str
)
def test_the_name_of_a_pool_is_one_that_gke_takes(shape: SliceShape) -> None:
    """At most 40 letters, digits and -; known only when gcloud has been asked."""
    script = node_pool_script(of_shape(shape, 1, "cluster.reservation=mine"))
    [name] = re.findall(r'create_pool "([^$]*)\$index"', script)

    assert re.fullmatch(r"[a-z][-a-z0-9]*", f"{name}9999")
    assert len(f"{name}9999") <= 40
