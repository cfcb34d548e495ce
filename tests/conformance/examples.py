"""The examples of `deploy/examples/`, as they are, except for what a small image can't run. Pure but for reading."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml

from tests.conformance import manifests

if TYPE_CHECKING:
    from tests.conformance.api import Object

DIRECTORY = Path(__file__).parents[2] / "deploy/examples"
_PROBES = ("startupProbe", "livenessProbe", "readinessProbe")
_UP = "/tmp/up"


def names() -> list[str]:
    """Return the names of all examples."""
    return sorted(path.stem for path in DIRECTORY.glob("*.yaml"))


def load(name: str) -> list[Object]:
    """Return an example's objects. A program that only its image has gets a stand-in, with the same probes' timing."""
    objects = list(yaml.safe_load_all((DIRECTORY / f"{name}.yaml").read_text()))
    return [_adapted(item) for item in objects]


def pod_template(item: Object) -> Object:
    """Return the pod's spec in a pod or a workload, or an empty one."""
    spec = item.get("spec", {})
    found: Any = spec if item["kind"] == "Pod" else spec.get("template", {}).get("spec", {})
    return dict(found) if "containers" in found else {}


def _adapted(item: Object) -> Object:
    changed = copy.deepcopy(item)
    for container in pod_template(changed).get("containers", ()):
        if "command" in container:
            continue
        container.pop("args", None)
        container["command"] = manifests.script(f"touch {_UP}", manifests.SHOW)
        for probe in _PROBES:
            if probe in container:
                container[probe].pop("httpGet")
                container[probe]["exec"] = {"command": ["test", "-e", _UP]}
    return changed
