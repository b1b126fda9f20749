"""Every recorded case: what is right passes; what is wrong is told, with who would have told it."""

from __future__ import annotations

import re
from typing import Any

import pytest

from raytpu.lint import Catcher, Severity, lint_text
from tests.lint.manifests import CASES, READS_CRDS, crds_or_skip, known_crds, serious, verdicts

pytestmark = READS_CRDS

ONLY_THE_CLUSTER_KNOWS = {
    "job-selector-missing-cluster.yaml": "kubectl get raycluster gone",
    "priorityclass-missing.yaml": "kubectl get priorityclass tpu-high",
    "svcaccount-missing.yaml": "kubectl get serviceaccount nobody",
}
"""They name objects that may exist: told as an info with the command that shows them."""

WRONG_BY_INTENT_ONLY = {
    "replicas-hosts-confused.yaml": "replicas-meaning",
    "two-multislice-groups.yaml": "multislice-unset",
}
"""For somebody else the same file is right: told as an info that says what it means."""

EXCEPTIONS = ONLY_THE_CLUSTER_KNOWS | WRONG_BY_INTENT_ONLY

THE_MISTAKE = {
    "accel-label-short.yaml": "tpu-v6e-slice",
    "autoscaler-min-eq-max0.yaml": "maxReplicas is 0",
    "autoscaler-options-off.yaml": "the autoscaler is off",
    "cpu-too-big.yaml": "a v6e host with 4 chips has 180",
    "dup-group.yaml": "two groups are called",
    "dws-missing-toleration.yaml": "gke-queued",
    "ft-no-redis.yaml": "without redisAddress",
    "head-no-resources.yaml": "the head's container has no resources",
    "head-wants-tpu.yaml": "the head asks for TPU chips",
    "image-version-mismatch.yaml": "Ray 2.44.0, the head 2.52.0",
    "job-bad-mode.yaml": "submissionMode: K8sJobMode",
    "job-http-with-submitter.yaml": "submitterPodTemplate is ignored",
    "job-selector-and-spec.yaml": "the spec is ignored",
    "megascale-num-mismatch.yaml": "is 4, but group tpu-group has replicas: 2",
    "megascale-single.yaml": "MEGASCALE_SLICE_ID is set by hand",
    "mem-milli.yaml": "thousandths of a byte",
    "multislice-one-per-group.yaml": "one group with replicas: 2",
    "negative-replicas.yaml": "replicas is -1",
    "no-accelerator.yaml": "without saying of which generation",
    "replicas-gt-max.yaml": "replicas is 3, maxReplicas 1",
    "replicas-lt-min.yaml": "replicas is 0, minReplicas 1",
    "sidecar-has-tpu.yaml": "Ray runs in the first one",
    "spot-long-grace.yaml": "a grace period of 300 s on spot nodes",
    "startparams-tpu-resource.yaml": "these quotes are lost",
    "suspend-group-no-gate.yaml": "is suspended",
    "svc-no-serve-port.yaml": "names ports, but none serve",
    "tpu-in-init.yaml": "asked for by container init-tpu",
    "tpu-qty-zero.yaml": "google.com/tpu is 0",
    "tpu-resource-typo.yaml": "cloud.google.com/tpu is no resource",
    "user-affinity.yaml": "replaces the whole affinity",
    "user-sets-tpu-worker-id.yaml": "TPU_WORKER_ID is set by hand",
    "v5e-2x2-8chips.yaml": "1 host of 4 chips, but its container asks for 8",
    "v6e-4x4-8chips-2hosts.yaml": "4 hosts of 4 chips, but its container asks for 8",
    "v6e-topology-3d.yaml": "no slice of v6e is 2x2x2",
}
"""Words that name the mistake, of each case that nobody else tells."""


def by_layer(*layers: str) -> list[Any]:
    found = [each for each in verdicts() if each["caught_by"] in layers and each["file"] not in EXCEPTIONS]
    return [pytest.param(each, id=each["file"].removesuffix(".yaml")) for each in found]


def without_indices(path: str) -> str:
    """Paths of the server and of lint in one form: no list items, no quotes, no single label."""
    plain = re.sub(r'\["([^"]+)"\]', r".\1", path)
    return re.sub(r"(metadata\.labels)\.[\w-]+", r"\1", re.sub(r"\[[^\]]*\]", "", plain))


def text_of(verdict: dict[str, Any]) -> str:
    return (CASES / verdict["file"]).read_text(encoding="utf-8")


@pytest.mark.parametrize("verdict", by_layer("valid"))
def test_what_runs_on_a_cluster_has_neither_error_nor_warning(verdict: dict[str, Any]) -> None:
    """A linter that cries wolf is switched off."""
    assert serious(lint_text(text_of(verdict), crds=known_crds())) == []


@pytest.mark.parametrize("verdict", by_layer("webhook", "operator"))
def test_what_webhook_or_operator_refuse_is_an_error_that_names_them(verdict: dict[str, Any]) -> None:
    """Without the layer nobody knows where to look when it happens anyway."""
    found = lint_text(text_of(verdict), crds=known_crds())

    errors = [each for each in found if each.severity is Severity.ERROR]
    assert Catcher(verdict["caught_by"]) in {each.caught_by for each in errors}, found


@pytest.mark.parametrize("verdict", by_layer("server"))
def test_what_the_api_server_refuses_is_an_error_at_the_path_that_it_names(verdict: dict[str, Any]) -> None:
    """The server's own message is the reference for what it looks at."""
    found = lint_text(text_of(verdict), crds=crds_or_skip())

    errors = [each for each in found if each.caught_by is Catcher.SERVER]
    said = without_indices(verdict["server_message"])
    assert any(without_indices(each.path) in said for each in errors), (errors, said)


@pytest.mark.parametrize("verdict", by_layer("nobody", "unclear"))
def test_what_nobody_tells_is_told(verdict: dict[str, Any]) -> None:
    """These are the mistakes that cost a night: every layer says yes."""
    found = serious(lint_text(text_of(verdict), crds=known_crds()))

    assert found
    if verdict["caught_by"] == "nobody":
        words = THE_MISTAKE[verdict["file"]]
        assert any(words in f"{each.what} {each.fix}" for each in found), found


@pytest.mark.parametrize("name", ONLY_THE_CLUSTER_KNOWS)
def test_a_name_that_only_the_cluster_knows_is_told_with_the_command_to_ask_it(name: str) -> None:
    """An error would fail every right manifest with a priority class."""
    found = lint_text((CASES / name).read_text(encoding="utf-8"), crds=known_crds())

    assert serious(found) == []
    assert any(ONLY_THE_CLUSTER_KNOWS[name] in each.fix for each in found)


@pytest.mark.parametrize("name", WRONG_BY_INTENT_ONLY)
def test_a_file_that_is_wrong_by_intent_only_is_told_what_it_means(name: str) -> None:
    """Only its author knows that four slices were not wanted."""
    found = lint_text((CASES / name).read_text(encoding="utf-8"), crds=known_crds())

    assert serious(found) == []
    assert WRONG_BY_INTENT_ONLY[name] in {each.rule for each in found}


def test_without_crds_all_that_needs_no_schema_is_told_as_with_them() -> None:
    """Most laptops have no CRDs at hand; what can be checked must be checked there, too."""
    crds = crds_or_skip()
    for verdict in verdicts():
        text = text_of(verdict)
        bare, full = lint_text(text), lint_text(text, crds=crds)
        with_schema = {each for each in full if each.rule.startswith("schema-")}
        if not with_schema:
            assert {each for each in bare if each.rule != "schema-unknown"} == set(full), verdict["file"]
        assert any("was not checked: no CRD" in each.what for each in bare), verdict["file"]
