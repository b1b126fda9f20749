"""Everything that TPU slices need is in the manifests, whatever the slices."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml

from raytpu.manifest import Kind, plain, ray_cluster, ray_job
from raytpu.manifest.labels import RAY_VERSION
from raytpu.spec import parse_workload
from raytpu.topology import GENERATIONS, SliceShape, slice_shapes
from tests.lint.manifests import case as recorded_case
from tests.manifest.crds import custom_resource_problems
from tests.manifest.workloads import (
    by_kind,
    cluster_of,
    documents,
    head_of,
    host_of,
    of_shape,
    plan,
    slices_of,
    workload,
)

ROOT = Path(__file__).parents[2]
CLUSTERS: list[Kind] = ["RayJob", "RayCluster"]
EVERYTHING = (
    "slices.count=2",
    "cluster.service_account=trainer",
    "cluster.priority_class=training",
    "cluster.queue={name: research, flex_start: true}",
    "cluster.gcsfuse={bucket: mine}",
    "cluster.auth=token",
    "cluster.multislice_network=true",
)


def several_hosts(generation: str) -> SliceShape:
    return next(shape for shape in slice_shapes(generation) if shape.hosts > 1)


@pytest.mark.parametrize("kind", CLUSTERS)
@pytest.mark.parametrize("count", [1, 2, 3, 4])
@pytest.mark.parametrize("generation", GENERATIONS)
def test_the_crds_accept_what_is_rendered(generation: str, count: int, kind: Kind) -> None:
    """A field that the API server does not know stops the whole file."""
    found = by_kind(of_shape(several_hosts(generation), count), kind)

    assert [problem for each in found.values() for problem in custom_resource_problems(each)] == []


@pytest.mark.parametrize("kind", [*CLUSTERS, "Kueue"])
def test_the_crds_accept_every_option_at_once(kind: Kind) -> None:
    """Options are used together."""
    found = documents(kind, *EVERYTHING)

    assert [problem for each in found.values() for problem in custom_resource_problems(each)] == []


@pytest.mark.parametrize(
    "shape", slice_shapes(), ids=lambda shape: f"{shape}-{shape.chips_per_host}".replace(" ", "-")
)
def test_hosts_chips_and_topology_agree_for_every_shape_there_is(shape: SliceShape) -> None:
    """GKE's webhook refuses a RayCluster where they do not; a wrong shape is Pending for ever, unreported."""
    for render in (ray_job, ray_cluster):
        *_, last = (plain(document) for document in render(of_shape(shape, 3)))
        group = slices_of({last["kind"]: last})
        pod = group["template"]["spec"]
        resources = pod["containers"][0]["resources"]
        assert (group["replicas"], group["minReplicas"], group["maxReplicas"]) == (3, 3, 3)
        assert group["numOfHosts"] * int(resources["requests"]["google.com/tpu"]) == shape.chips
        assert resources["requests"] == resources["limits"]
        assert pod["nodeSelector"]["cloud.google.com/gke-tpu-topology"] == shape.topology


CASES = {
    "ok-v6e-4x4": of_shape(slice_shapes("v6e")[4], 1),
    "ok-v4-2x2x2": of_shape(slice_shapes("v4")[1], 1),
    "ok-v5p-2x2x4-x2": of_shape(slice_shapes("v5p")[2], 2),
    "ok-autoscaler-v2": plan("cluster.max_slices=2"),
}


@pytest.mark.parametrize("case", CASES)
def test_what_a_real_cluster_accepted_and_what_is_rendered_say_the_same(case: str) -> None:
    """The recorded cases came up on a real API server, operator and webhook."""
    recorded = {"RayCluster": yaml.safe_load(recorded_case(case))}
    rendered = by_kind(CASES[case], "RayCluster")

    same = ("replicas", "minReplicas", "maxReplicas", "numOfHosts", "rayStartParams")
    assert {key: slices_of(rendered)[key] for key in same} == {key: slices_of(recorded)[key] for key in same}
    assert host_of(rendered)["nodeSelector"] == host_of(recorded)["nodeSelector"]
    ours, theirs = host_of(rendered)["containers"][0], host_of(recorded)["containers"][0]
    assert ours["ports"] == theirs["ports"]
    assert ours["resources"]["limits"]["google.com/tpu"] == theirs["resources"]["limits"]["google.com/tpu"]
    assert ours["resources"].keys() == theirs["resources"].keys()
    for key in ("enableInTreeAutoscaling", "autoscalerOptions"):
        assert cluster_of(rendered).get(key) == cluster_of(recorded).get(key)
    ports = {(port["containerPort"], port["name"]) for port in head_of(recorded)["containers"][0]["ports"]}
    assert {
        (port["containerPort"], port["name"]) for port in head_of(rendered)["containers"][0]["ports"]
    } <= ports


def test_the_cluster_that_is_written_by_hand_is_valid_too() -> None:
    """It is what people learn from."""
    text = (ROOT / "k8s" / "base" / "raycluster.yaml").read_text(encoding="utf-8")
    cluster = yaml.safe_load(text)
    rendered = documents("RayCluster")

    assert custom_resource_problems(cluster) == []
    for key in ("numOfHosts", "replicas", "minReplicas", "maxReplicas"):
        assert slices_of({"RayCluster": cluster})[key] == slices_of(rendered)[key]
    assert host_of({"RayCluster": cluster})["nodeSelector"] == host_of(rendered)["nodeSelector"]


def test_the_same_file_gives_the_same_text() -> None:
    """A diff shows what changed, not the order of a set."""
    assert json.dumps([plain(each) for each in ray_job(plan(*EVERYTHING))]) == json.dumps(
        [plain(each) for each in ray_job(plan(*EVERYTHING))]
    )


def test_the_job_runs_the_workload_that_was_rendered() -> None:
    """`--set` at rendering must hold in the pod; the file there may be read by a later raytpu."""
    found = documents("RayJob", "train.config.steps=7")
    [file] = found["ConfigMap"]["data"].values()
    [volume] = [volume for volume in head_of(found)["volumes"] if volume["name"] == "workload"]
    mounts = {mount["name"]: mount["mountPath"] for mount in head_of(found)["containers"][0]["volumeMounts"]}

    assert parse_workload(file) == workload("train.config.steps=7")
    assert volume["configMap"]["name"] == found["ConfigMap"]["metadata"]["name"]
    assert f"raytpu run {mounts['workload']}/workload.yaml --on auto" in found["RayJob"]["spec"]["entrypoint"]


def test_a_job_frees_its_slices_and_does_not_wait_for_ever() -> None:
    """Left to their defaults, a finished job keeps its slices, and one without nodes waits unnoticed."""
    spec = documents("RayJob", "cluster.pre_running_deadline_s=600", "cluster.backoff_limit=4")["RayJob"][
        "spec"
    ]

    assert spec["shutdownAfterJobFinishes"] is True
    assert spec["preRunningDeadlineSeconds"] == 600
    assert spec["backoffLimit"] == 4
    assert spec["submissionMode"] == "K8sJobMode"


def test_the_disruption_budget_finds_the_head_and_only_it() -> None:
    """One that matches nothing protects nothing; one that matches hosts keeps nodes from repair."""
    found = documents("RayJob")
    wanted = found["PodDisruptionBudget"]["spec"]["selector"]["matchLabels"].items()
    cluster = cluster_of(found)

    assert wanted <= cluster["headGroupSpec"]["template"]["metadata"]["labels"].items()
    assert not wanted <= slices_of(found)["template"]["metadata"]["labels"].items()
    assert found["PodDisruptionBudget"]["spec"]["minAvailable"] == 1


def test_the_head_has_no_chips_and_takes_no_tasks() -> None:
    """A head on a TPU node takes one host of a slice, which then is never whole."""
    found = documents("RayJob", "cluster.head={cpu: 8, memory: 32Gi}")
    head = head_of(found)

    assert head["containers"][0]["resources"]["limits"] == {"cpu": "8", "memory": "32Gi"}
    assert "nodeSelector" not in head
    assert cluster_of(found)["headGroupSpec"]["rayStartParams"]["num-cpus"] == "0"


def test_without_limits_to_grow_within_there_is_no_autoscaler() -> None:
    """Options of an autoscaler that is off are accepted, and do nothing."""
    cluster = cluster_of(documents("RayCluster"))

    assert {"enableInTreeAutoscaling", "autoscalerOptions"} & cluster.keys() == set()


def test_with_limits_a_cluster_begins_with_the_fewest_and_a_job_with_what_its_run_holds() -> None:
    """A RayCluster waits for runs; a RayJob's run would give up before the autoscaler has looked."""
    limits = ("cluster.min_slices=0", "cluster.max_slices=5", "recovery.spares=1")
    numbers = {kind: slices_of(documents(kind, *limits)) for kind in CLUSTERS}

    assert {kind: (g["replicas"], g["minReplicas"], g["maxReplicas"]) for kind, g in numbers.items()} == {
        "RayJob": (2, 0, 5),
        "RayCluster": (0, 0, 5),
    }
    assert cluster_of(documents("RayCluster", *limits))["autoscalerOptions"] == {"version": "v2"}


def test_replicas_are_within_their_limits() -> None:
    """Outside of them the operator changes them without a word."""
    for kind in CLUSTERS:
        group = slices_of(documents(kind, "cluster.min_slices=3"))
        assert (group["replicas"], group["minReplicas"], group["maxReplicas"]) == (3, 3, 3)


def test_the_autoscaler_may_launch_all_hosts_of_a_large_slice_at_once() -> None:
    """Its default is 10 nodes; rounded down to slices that is none, and nothing ever comes."""
    options = cluster_of(documents("RayCluster", "slices.topology=8x8", "cluster.max_slices=2"))[
        "autoscalerOptions"
    ]

    assert options["env"] == [{"name": "AUTOSCALER_MAX_CONCURRENT_LAUNCHES", "value": "16"}]


@pytest.mark.parametrize(("setting", "grace_s"), [("cluster.spot=false", 120), ("cluster.spot=true", 25)])
def test_a_host_that_must_go_is_drained_within_its_grace(setting: str, grace_s: int) -> None:
    """KubeRay sets neither: Ray hears nothing, and all steps since the last save are lost."""
    host = host_of(documents("RayJob", setting))
    [_, _, script] = host["containers"][0]["lifecycle"]["preStop"]["exec"]["command"]

    assert host["terminationGracePeriodSeconds"] == grace_s
    assert f"--deadline-remaining-seconds {grace_s - 5}" in script


def test_nothing_is_set_that_the_webhook_would_leave_as_it_is() -> None:
    """A TPU_WORKER_ID of the manifest is kept in every pod: all hosts are host 0. Affinity is replaced."""
    host = host_of(documents("RayJob", "slices.count=2"))

    assert "env" not in host["containers"][0]
    assert "affinity" not in host


def test_options_reach_every_pod_that_needs_them() -> None:
    """A bucket that only the hosts see fails in the driver, after everything has come up."""
    found = documents("RayJob", *EVERYTHING)
    for pod, template in (
        (head_of(found), cluster_of(found)["headGroupSpec"]["template"]),
        (host_of(found), slices_of(found)["template"]),
    ):
        mounted = {mount["name"]: mount["mountPath"] for mount in pod["containers"][0]["volumeMounts"]}
        assert mounted.keys() == {volume["name"] for volume in pod["volumes"]}
        assert (mounted["bucket"], mounted["shared-memory"]) == ("/gcs", "/dev/shm")
        assert pod["serviceAccountName"] == "trainer"
        assert pod["priorityClassName"] == "training"
        assert template["metadata"]["annotations"] == {"gke-gcsfuse/volumes": "true"}
    assert cluster_of(found)["authOptions"] == {"mode": "token"}


def test_spot_and_reserved_hosts_are_selected() -> None:
    """Without the label a pod takes whichever pool is there first."""
    spot = host_of(documents("RayJob", "cluster.spot=true"))["nodeSelector"]
    reserved = host_of(documents("RayJob", "cluster.reservation=mine"))["nodeSelector"]

    assert spot["cloud.google.com/gke-spot"] == "true"
    assert reserved["cloud.google.com/reservation-name"] == "mine"


def test_the_network_between_slices_is_claimed_by_the_hosts() -> None:
    found = documents("RayJob", *EVERYTHING)
    host = host_of(found)
    [claim] = host["resourceClaims"]

    assert claim["resourceClaimTemplateName"] == found["ResourceClaimTemplate"]["metadata"]["name"]
    assert host["containers"][0]["resources"]["claims"] == [{"name": claim["name"]}]
    assert "resourceClaims" not in head_of(found)


def test_a_queue_admits_the_object_as_a_whole() -> None:
    """The label on a part of it would queue pods one by one."""
    found = documents("RayJob", *EVERYTHING)
    tolerated = {toleration["key"] for toleration in host_of(found)["tolerations"]}

    labelled = {
        kind for kind, each in found.items() if "kueue.x-k8s.io/queue-name" in each["metadata"]["labels"]
    }
    assert labelled == {"RayJob"}
    assert tolerated == {"google.com/tpu", "cloud.google.com/gke-queued"}


def test_the_quota_of_the_queue_has_room_for_the_workload() -> None:
    """Kueue never admits what exceeds the quota, and says so only in an event of an object of its own."""
    [cpu_group, tpu_group] = documents("Kueue", *EVERYTHING)["ClusterQueue"]["spec"]["resourceGroups"]
    found = documents("RayJob", *EVERYTHING)
    hosts = slices_of(found)["replicas"] * slices_of(found)["numOfHosts"]
    of_host, of_head = (
        pod["containers"][0]["resources"]["requests"] for pod in (host_of(found), head_of(found))
    )
    cpus = cpu_group["flavors"][0]["resources"][0]["nominalQuota"]
    chips = tpu_group["flavors"][0]["resources"][0]["nominalQuota"]

    assert int(chips) == hosts * int(of_host["google.com/tpu"])
    assert int(cpus) > hosts * int(of_host["cpu"]) + int(of_head["cpu"])


def test_names_stay_below_what_kuberay_takes() -> None:
    """47 letters of a RayJob, 63 of a pod's name; longer ones are refused after `kubectl apply` said OK."""
    longest = "a" * 40
    found = documents("RayJob", f"name={longest}", *EVERYTHING)

    assert len(found["RayJob"]["metadata"]["name"]) <= 47
    # <job>-<5 letters>-headless, and <group>-<replica>-<host>
    assert len(longest) + 6 + len("-headless") <= 63
    assert all(len(each["metadata"]["name"]) <= 63 for each in found.values())
    assert len(f"{slices_of(found)['groupName']}-9999-9999") <= 63


def test_the_version_of_ray_is_that_of_the_image_and_of_the_tests() -> None:
    """KubeRay decides by it what it may ask of Ray."""
    pinned = (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    dockerfile = (ROOT / "deploy" / "image" / "Dockerfile").read_text(encoding="utf-8")

    assert f"ray=={RAY_VERSION}" in pinned
    assert f"ARG RAY_VERSION={RAY_VERSION}\n" in dockerfile
