"""Rules of KubeRay 1.7 that the recorded cases do not show, each with a file that is right beside it."""

from __future__ import annotations

import pytest

from raytpu.lint import Catcher, lint_text
from tests.lint.manifests import READS_CRDS, V6E, case, known_crds, serious

pytestmark = READS_CRDS

SERVICE, JOB = case("ok-svc-v5e"), case("ok-job-sidecar")
SERVE_PORT = "          - containerPort: 8000\n              name: serve\n"


def rules(text: str) -> set[tuple[str, Catcher]]:
    return {(each.rule, each.caught_by) for each in serious(lint_text(text, crds=known_crds()))}


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("name: serve", "name: serve-grpc"),
        ("            ports:\n", "            x-ports:\n"),
    ],
    ids=["prefix", "none"],
)
def test_a_serve_port_may_have_a_suffix_or_be_left_to_kuberay(old: str, new: str) -> None:
    """KubeRay's own samples name no ports at all."""
    assert old in SERVICE
    assert rules(SERVICE.replace(old, new, 1)) <= {("schema-unknown-field", Catcher.SERVER)}


@pytest.mark.parametrize(
    ("text", "old", "new", "rule", "layer"),
    [
        (
            V6E,
            "  headGroupSpec:",
            "  authOptions: {mode: token}\n  headGroupSpec:",
            "authentication",
            Catcher.OPERATOR,
        ),
        (V6E, "numOfHosts: 4", "numOfHosts: 4\n    idleTimeoutSeconds: 60", "autoscaler", Catcher.OPERATOR),
        (V6E, "minReplicas: 0", "minReplicas: -1", "replicas", Catcher.OPERATOR),
        (V6E, "numOfHosts: 4", "numOfHosts: 4\n    labels: {a b: c}", "group-label", Catcher.OPERATOR),
        (
            V6E,
            "image: rayproject/ray:2.60.0\n          resources:\n",
            "resources:\n",
            "pod-image",
            Catcher.OPERATOR,
        ),
        (
            JOB,
            "shutdownAfterJobFinishes: true",
            "shutdownAfterJobFinishes: false",
            "job-ending",
            Catcher.OPERATOR,
        ),
        (JOB, "ttlSecondsAfterFinished: 60", "preRunningDeadlineSeconds: 0", "job-numbers", Catcher.OPERATOR),
        (JOB, "ttlSecondsAfterFinished: 60", "runtimeEnvYAML: '[1]'", "job-runtime-env", Catcher.OPERATOR),
        (SERVICE, "name: ok-svc-v5e", f"name: {'s' * 48}", "name-length", Catcher.OPERATOR),
        (
            SERVICE,
            "spec:\n",
            "spec:\n  upgradeStrategy: {type: newcluster}\n",
            "service-upgrade",
            Catcher.OPERATOR,
        ),
        (SERVICE, 'resources: {"TPU": 4}', 'resources: {"TPU": 16}', "service-actor", Catcher.NOBODY),
        (SERVICE, "serveConfigV2: |", "x: |", "service-config", Catcher.NOBODY),
    ],
)
def test_what_the_operator_or_nobody_tells_is_told(
    text: str, old: str, new: str, rule: str, layer: Catcher
) -> None:
    """`kubectl apply` says OK to all of these."""
    assert old in text
    assert rules(text) == set()
    assert (rule, layer) in rules(text.replace(old, new, 1))


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("  headGroupSpec:", "  rayVersion: 2.60.0\n  authOptions: {mode: token}\n  headGroupSpec:"),
        (
            "spec:\n  head",
            "spec:\n  enableInTreeAutoscaling: true\n  autoscalerOptions: {version: v2}\n  head",
        ),
        ("        nodeSelector:", "        tolerations: [{operator: Exists}]\n        nodeSelector:"),
        ("        nodeSelector:", "        terminationGracePeriodSeconds: 25\n        nodeSelector:"),
        (
            "resources:\n            limits: {",
            "volumeMounts: [{name: shared-mem, mountPath: /a}]\n          resources:\n            limits: {",
        ),
    ],
)
def test_what_is_right_passes(old: str, new: str) -> None:
    """Each is what `raytpu render` or a careful person writes."""
    assert old in V6E
    assert rules(V6E.replace(old, new, 1)) == set()


def test_a_job_in_a_queue_must_give_its_cluster_back() -> None:
    """Kueue would never have the quota back."""
    queued = JOB.replace("  name: ok-job-sidecar", "  name: a\n  labels: {kueue.x-k8s.io/queue-name: tpu}")
    kept = queued.replace("  shutdownAfterJobFinishes: true\n  ttlSecondsAfterFinished: 60\n", "")

    assert rules(queued) == set()
    assert rules(kept) == {("job-queue", Catcher.SERVER)}
