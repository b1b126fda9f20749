"""CRDs of the cluster that kubectl talks to, kept in a folder for later."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from raytpu.errors import Refused, WrongRequest

GROUPS = ("ray.io", "kueue.x-k8s.io")
# By feel: the CRDs of a large cluster are some 10 MB.
ANSWER_S = 30


def save_crds_of_cluster(folder: Path) -> Path:
    """Write the CRDs of KubeRay and Kueue into ``folder``, one JSON file each; returns the folder.

    Raises:
        WrongRequest: no kubeconfig, or a cluster without KubeRay.
        Refused: the cluster does not answer, or does not let this user read CRDs.
    """
    found = [item for item in _listed() if item["spec"]["group"] in GROUPS]
    if not any(item["spec"]["group"] == "ray.io" for item in found):
        raise WrongRequest("the cluster has no CRD of ray.io; install KubeRay, or name a folder: --crds DIR")
    folder.mkdir(parents=True, exist_ok=True)
    for item in found:
        # A list leaves out what its items are.
        document = {"apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition", **item}
        file = folder / f"{item['metadata']['name']}.json"
        written = file.with_suffix(f".{os.getpid()}")
        written.write_text(json.dumps(document), encoding="utf-8")
        os.replace(written, file)
    return folder


def _listed() -> list[dict[str, Any]]:
    import kubernetes
    import urllib3.exceptions

    try:
        try:
            kubernetes.config.load_kube_config()
        except kubernetes.config.ConfigException:
            kubernetes.config.load_incluster_config()
    except kubernetes.config.ConfigException as error:
        raise WrongRequest(
            f"no kubeconfig, and not in a pod ({error}); name a folder of CRDs: --crds DIR"
        ) from error
    with kubernetes.client.ApiClient() as client:
        client.configuration.retries = False
        api = kubernetes.client.ApiextensionsV1Api(client)
        try:
            answer = api.list_custom_resource_definition(_preload_content=False, _request_timeout=ANSWER_S)
            return list(json.loads(answer.data)["items"])
        except kubernetes.client.ApiException as error:
            why = "may not list CRDs" if error.status == 403 else f"answers {error.status} {error.reason}"
            raise Refused(f"{client.configuration.host} {why}; name a folder: --crds DIR") from error
        except urllib3.exceptions.HTTPError as error:
            raise Refused(f"{client.configuration.host} does not answer: {error}") from error
