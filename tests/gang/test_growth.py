"""What Ray's own autoscaler makes of a demand: its scheduler and its reading of a RayCluster, called here."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

import pytest
from ray.autoscaler._private.kuberay import autoscaling_config
from ray.autoscaler.v2.instance_manager.config import AutoscalingConfig
from ray.autoscaler.v2.scheduler import ResourceDemandScheduler, SchedulingRequest
from ray.autoscaler.v2.schema import AutoscalerInstance
from ray.core.generated import autoscaler_pb2 as messages
from ray.core.generated.common_pb2 import LabelSelectorOperator
from ray.core.generated.instance_manager_pb2 import Instance, NodeKind

from raytpu.gang.demand_bundles import bundles
from raytpu.plan import Inventory
from raytpu.plan.growth import Demand, accepted
from raytpu.plan.ledger import Request
from raytpu.spec import Slices
from raytpu.topology import GENERATIONS, SliceShape, slice_shape, slice_shapes
from tests.kuberay.autoscaler import ray_cluster
from tests.kuberay.cluster import Group, group
from tests.plan.builders import slice_state, slices

SHAPES = [shape for shape in slice_shapes() if shape.hosts <= 16]
"""Larger ones are the same, and seconds of binpacking."""


def wanted(shape: SliceShape) -> Slices:
    return Slices(generation=shape.generation, topology=shape.topology, chips_per_host=shape.chips_per_host)


def demand(shape: SliceShape, *, coming: int = 0, asked: int = 0, known: Iterable[str] = ()) -> Demand:
    request = Request(id="r", owner="job", want=wanted(shape), arrived=1, arrived_s=0.0, deadline_s=1.0)
    return Demand(request=request, shape=shape, known=frozenset(known), coming=coming, asked=asked)


def as_the_gcs_shows(
    nodes: Iterable[tuple[dict[str, float], dict[str, str]]],
) -> messages.GangResourceRequest:
    """A placement group that waits, STRICT_SPREAD, as the GCS passes it to the autoscaler."""
    selector = messages.BundleSelector()
    for resources, labels in nodes:
        one = selector.resource_requests.add(resources_bundle=resources)
        one.placement_constraints.add(anti_affinity=messages.AntiAffinityConstraint(label_name="_PG_x"))
        constraints = one.label_selectors.add().label_constraints if labels else None
        for key, value in labels.items():
            without = value.startswith("!in(")
            constraints.add(
                label_key=key,
                operator=LabelSelectorOperator.LABEL_OPERATOR_NOT_IN
                if without
                else LabelSelectorOperator.LABEL_OPERATOR_IN,
                label_values=value[len("!in(") : -1].split(",") if without else [value],
            )
    return messages.GangResourceRequest(bundle_selectors=[selector])


def launches(
    groups: list[Group], shown: messages.GangResourceRequest, nodes: Iterable[AutoscalerInstance] = ()
) -> dict[str, int]:
    """How many nodes of which group the autoscaler would launch for it."""
    derived = autoscaling_config._derive_autoscaling_config_from_ray_cr(ray_cluster(groups, 60))
    config = AutoscalingConfig(derived)
    reply = ResourceDemandScheduler().schedule(
        SchedulingRequest(
            disable_launch_config_check=True,
            node_type_configs=config.get_node_type_configs(),
            max_num_nodes=config.get_max_num_nodes(),
            gang_resource_requests=[shown],
            current_instances=list(nodes),
        )
    )
    return {each.instance_type: each.count for each in reply.to_launch}


def node(of: Group, slice_name: str, worker_id: int, *, up: bool) -> AutoscalerInstance:
    """A host on its way, or one that runs, with the resources and labels that it has in truth."""
    instance = Instance(
        instance_id=f"{slice_name}-{worker_id}",
        instance_type=of.name,
        status=Instance.RAY_RUNNING if up else Instance.ALLOCATED,
        node_kind=NodeKind.WORKER,
        node_id=f"{slice_name}{worker_id}".encode().hex(),
    )
    if not up:
        return AutoscalerInstance(im_instance=instance)
    chips = float(of.slice_plan.chips_per_host)
    resources = {"CPU": 8.0, "TPU": chips} | (
        {f"TPU-{of.slice_plan.pod_type}-head": 1.0} if worker_id == 0 else {}
    )
    state = messages.NodeState(
        total_resources=resources,
        available_resources=resources,
        labels={"ray.io/tpu-slice-name": slice_name, "ray.io/tpu-worker-id": str(worker_id)},
    )
    return AutoscalerInstance(im_instance=instance, ray_node=state)


@pytest.mark.parametrize("shape", slice_shapes(), ids=lambda shape: f"{shape}-{shape.chips_per_host}")
def test_kuberay_gives_every_group_the_head_that_is_asked_for(shape: SliceShape):
    """By another name it would never be found, and the slice never come."""
    of = replace(group(wanted(shape), 1), name="tpu")
    resources = autoscaling_config._derive_autoscaling_config_from_ray_cr(ray_cluster([of], 60))[
        "available_node_types"
    ]["tpu"]["resources"]

    assert resources[f"TPU-{shape.ray_pod_type}-head"] == 1
    assert resources["TPU"] == shape.chips_per_host


@pytest.mark.parametrize("generation", list(GENERATIONS))
def test_for_every_shape_exactly_the_hosts_of_one_slice_of_its_group_are_launched(generation: str):
    """KubeRay rounds hosts down to whole slices: with a host less nothing comes, with the hosts spread over
    two groups neither does."""
    shapes = [shape for shape in SHAPES if shape.generation == generation]
    groups = [group(wanted(shape), 4) for shape in shapes]

    for shape, of in zip(shapes, groups, strict=True):
        shown = as_the_gcs_shows(bundles(demand(shape, asked=1), Inventory(slices=())))
        assert launches(groups, shown) == {of.name: shape.hosts}


def test_a_slice_that_is_coming_up_host_by_host_makes_nothing_more_come():
    """Else every host that is up before worker 0 brings another slice closer."""
    shape = slice_shape("v6e", "4x4")
    of = group(wanted(shape), 4)
    others = [group(wanted(each), 4) for each in SHAPES if each.generation == "v6e" and each != shape]
    before = demand(shape, asked=1)

    for up in ((), (2,), (1, 2, 3), (0, 1, 2), (0, 1, 2, 3)):
        nodes = [node(of, "new", worker_id, up=worker_id in up) for worker_id in range(4)]
        for stage in (accepted(before),) if up else (before, accepted(before)):
            shown = as_the_gcs_shows(bundles(stage, Inventory(slices=())))
            assert launches([*others, of], shown, nodes) == {}


def test_slices_that_there_were_before_are_not_taken_for_new_ones():
    """They are idle, and kept for others or under quarantine: then nothing would come at all."""
    shape = slice_shape("v6e", "2x4", 4)
    of = group(slices(), 4)
    nodes = [node(of, "old", worker_id, up=True) for worker_id in range(2)]

    shown = as_the_gcs_shows(bundles(demand(shape, asked=1, known=["old"]), Inventory(slices=())))
    assert launches([of], shown, nodes) == {of.name: 2}
    shown = as_the_gcs_shows(bundles(demand(shape, asked=1), Inventory(slices=())))
    assert launches([of], shown, nodes) == {of.name: 1}, "which KubeRay rounds down to nothing"


def test_a_slice_that_is_kept_is_shown_host_by_host_by_its_name():
    """The autoscaler does not take away what is needed, and nothing else may be taken for it."""
    shape = slice_shape("v6e", "2x4", 4)
    of = group(slices(), 4)
    nodes = [node(of, name, worker_id, up=True) for name in ("other", "old") for worker_id in range(2)]
    keeping = replace(demand(shape, asked=1, known=["old", "other"]), kept=("old",))
    inventory = Inventory(slices=(slice_state("old"), slice_state("other")))

    shown = list(bundles(keeping, inventory))
    assert [labels for _, labels in shown[:2]] == [
        {"ray.io/tpu-slice-name": "old", "ray.io/tpu-worker-id": str(worker_id)} for worker_id in range(2)
    ]
    assert launches([of], as_the_gcs_shows(shown), nodes) == {of.name: 2}
    assert launches([of], as_the_gcs_shows(shown), nodes[:2]) == {}, "without it, the demand as a whole fails"


def test_hosts_of_eight_chips_and_of_four_are_told_apart_as_long_as_both_can_be_had():
    """Both kinds of 2x4 have one pod type, and a host of 8 chips has room for a demand of 4."""
    four, eight = (slice_shape("v6e", "2x4", chips) for chips in (4, 8))
    groups = [group(wanted(shape), 2) for shape in (eight, four)]

    for shape, of in ((eight, groups[0]), (four, groups[1])):
        shown = as_the_gcs_shows(bundles(demand(shape, asked=1), Inventory(slices=())))
        assert launches(groups, shown) == {of.name: shape.hosts}
