"""RayService: what the operator refuses of it, and what keeps it from ever becoming ready."""

from __future__ import annotations

from collections.abc import Iterator
from difflib import get_close_matches

from raytpu.lint.findings import Catcher, Finding, Severity
from raytpu.lint.operator_rules import Refuses
from raytpu.lint.places import Place
from raytpu.lint.ray_documents import RayCluster
from raytpu.lint.yaml_text import NotYaml, YamlDocument, read_documents

_UPGRADES = ("NewCluster", "NewClusterWithIncrementalUpgrade", "None")
_STUCK = "the RayService stays Initializing, without an event"
# https://docs.ray.io/en/latest/serve/api/doc/ray.serve.schema.ServeDeploySchema.html
_SERVE_KEYS = (
    "applications",
    "http_options",
    "grpc_options",
    "logging_config",
    "proxy_location",
    "target_capacity",
)


def check_service(document: Place, cluster: RayCluster | None) -> Iterator[Finding]:
    """Everything wrong with a RayService, except in its cluster."""
    refuses = Refuses("RayService")
    yield from _upgrade(document.at("spec"), refuses)
    yield from _serve_config(document.at("spec", "serveConfigV2"), cluster)
    if cluster is not None and not document.at("spec", "serveService").is_there:
        yield from _port(cluster)


def _upgrade(spec: Place, refuses: Refuses) -> Iterator[Finding]:
    kind = spec.at("upgradeStrategy", "type")
    if kind.text is not None and kind.text not in _UPGRADES:
        close = get_close_matches(kind.text, _UPGRADES, n=1, cutoff=0.6)
        fix = f"type: {close[0] if close else ' or '.join(_UPGRADES)}"
        yield refuses(kind, "service-upgrade", f"there is no upgradeStrategy {kind.text}", fix)
    if kind.text != "NewClusterWithIncrementalUpgrade":
        return
    options = spec.at("upgradeStrategy", "clusterUpgradeOptions")
    if spec.at("rayClusterConfig", "enableInTreeAutoscaling").value is not True:
        what = "NewClusterWithIncrementalUpgrade needs the autoscaler"
        place = spec.at("rayClusterConfig", "enableInTreeAutoscaling")
        yield refuses(place, "service-upgrade", what, "enableInTreeAutoscaling: true in rayClusterConfig")
    if not options.is_there:
        what = "NewClusterWithIncrementalUpgrade needs clusterUpgradeOptions"
        fix = "clusterUpgradeOptions: {gatewayClassName: …, stepSizePercent: 10, intervalSeconds: 30}"
        yield refuses(options, "service-upgrade", what, fix)
        return
    for field in ("gatewayClassName", "stepSizePercent", "intervalSeconds"):
        if not options.at(field).value:
            yield refuses(options.at(field), "service-upgrade", f"{field} is missing", f"{field}: …")


def _serve_config(config: Place, cluster: RayCluster | None) -> Iterator[Finding]:
    if not config.text:
        if not config.is_there or config.text == "":
            yield _stuck(
                config, "service-config", "there is no serveConfigV2", "serveConfigV2: the applications"
            )
        return
    document = next(iter(read_documents(config.text)), None)
    if isinstance(document, NotYaml):
        yield config.finding(
            "service-config",
            Severity.ERROR,
            f"serveConfigV2 is not YAML: {document.what} (its line {document.line})",
            fix="YAML below `serveConfigV2: |`, each line indented",
            caught_by=Catcher.OPERATOR,
            when="`kubectl apply` succeeds; FailedToUpdateServeApplications events follow",
        )
        return
    value = document.value if isinstance(document, YamlDocument) else None
    if not isinstance(value, dict) or not isinstance(value.get("applications"), list):
        keys = list(value) if isinstance(value, dict) else []
        close = next((key for key in keys if get_close_matches(key, ("applications",), cutoff=0.6)), None)
        what = (
            f"serveConfigV2 has {close}: in place of applications:"
            if close
            else "serveConfigV2 has no applications"
        )
        yield _stuck(config, "service-config", what, "applications: [{name: …, import_path: …}]")
        return
    for key in value:
        if key not in _SERVE_KEYS:
            what = f"serveConfigV2 has a key {key} that Serve does not know"
            yield _stuck(config, "service-config", what, f"one of {', '.join(_SERVE_KEYS)}")
    if cluster is not None and isinstance(document, YamlDocument):
        yield from _actors(config, Place(config.file, document, (), value), cluster)


def _actors(config: Place, serve: Place, cluster: RayCluster) -> Iterator[Finding]:
    """Chips of one actor against those of the largest pod: an actor lives on one host."""
    most = max((group.chips for group in cluster.workers), default=0)
    for application in serve.at("applications").items():
        for deployment in application.at("deployments").items():
            wanted = deployment.at("ray_actor_options", "resources", "TPU").value
            if not isinstance(wanted, int | float) or not wanted > most:
                continue
            name = deployment.at("name").value
            what = f"deployment {name} wants TPU: {wanted} for one actor; a pod has {most}"
            yield config.finding(
                "service-actor",
                Severity.ERROR,
                what,
                fix=f'resources: {{"TPU": {most}}}, or a placement group over the hosts of a slice',
                caught_by=Catcher.NOBODY,
                when="its replicas stay pending; Serve's log tells",
            )


def _port(cluster: RayCluster) -> Iterator[Finding]:
    """A head that names ports must name one for Serve; of one that names none, KubeRay adds the usual."""
    containers = cluster.head.pod.containers
    if not containers:
        return
    ports = containers[0].at("ports")
    names = [port.at("name").text or "" for port in ports.items()]
    if names and not any(name == "serve" or name.startswith("serve-") for name in names):
        what = "the head's container names ports, but none serve"
        yield _stuck(ports, "service-port", what, "- {containerPort: 8000, name: serve} in the head's ports")


def _stuck(place: Place, rule: str, what: str, fix: str) -> Finding:
    return place.finding(rule, Severity.ERROR, what, fix=fix, caught_by=Catcher.NOBODY, when=_STUCK)
