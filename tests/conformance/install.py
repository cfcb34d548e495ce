"""What an administrator installs beside the driver, from `deploy/`, where the suite has to do it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml

from driver.errors import ApiConflictError
from driver.kube.client import JSON_PATCH
from tests.conformance.api import Api, collection, path_of
from tests.conformance.manifests import DRIVER

if TYPE_CHECKING:
    from tests.conformance.api import Object

DEPLOY = Path(__file__).parents[2] / "deploy"


async def classes(kubeconfig: Path, context: str | None = None) -> list[str]:
    """Create the device classes that are missing, with the extended resource; return the paths of what was created."""
    made = []
    async with Api.from_kubeconfig(kubeconfig, context) as api:
        for item in yaml.safe_load_all((DEPLOY / "base/deviceclasses.yaml").read_text()):
            try:
                await api.create(collection("DeviceClass"), item)
            except ApiConflictError:
                continue
            made.append(path_of(item))
            for operations in _extended_resource(item):
                await api.patch(path_of(item), operations, content_type=JSON_PATCH)
    return made


async def remove_slices(kubeconfig: Path, context: str | None, node: str) -> None:
    """Delete the driver's slices of a node."""
    async with Api.from_kubeconfig(kubeconfig, context) as api:
        for item in (await api.list(collection("ResourceSlice")))["items"]:
            if item["spec"]["driver"] == DRIVER and item["spec"].get("nodeName") == node:
                await api.delete(path_of({"kind": "ResourceSlice", **item}))


def _extended_resource(item: Object) -> list[list[dict[str, Any]]]:
    """Return the JSON patches that the component for extended resources has for a class."""
    component = yaml.safe_load((DEPLOY / "components/extended-resource/kustomization.yaml").read_text())
    wanted = (item["kind"], item["metadata"]["name"])
    patches = [one for one in component["patches"] if (one["target"]["kind"], one["target"]["name"]) == wanted]
    return [yaml.safe_load(one["patch"]) for one in patches]
