"""The manifests as kubectl builds them, and what is in them."""

from __future__ import annotations

import subprocess
import sys
from functools import cache
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "deploy"
OVERLAYS = ("overlays/nvidia", "overlays/mig-mps", "overlays/fake")
BUILDS = ("base", *OVERLAYS)
EXAMPLES = sorted((DEPLOY / "examples").glob("*.yaml"))

Object = dict[str, Any]


@cache
def build(name: str) -> tuple[Object, ...]:
    return build_path(DEPLOY / name)


def build_path(path: Path, *options: str) -> tuple[Object, ...]:
    kubectl = Path(sys.executable).with_name("kubectl")
    done = subprocess.run(
        [kubectl, "kustomize", *options, str(path)], capture_output=True, text=True, check=False, timeout=60
    )
    assert done.returncode == 0, done.stderr
    return tuple(yaml.safe_load_all(done.stdout))


def load(path: Path) -> list[Object]:
    return list(yaml.safe_load_all(path.read_text()))


def one(objects: tuple[Object, ...] | list[Object], kind: str, name: str | None = None) -> Object:
    found = [it for it in objects if it["kind"] == kind and name in (None, it["metadata"]["name"])]
    assert len(found) == 1, f"{len(found)} of kind {kind}, name {name}"
    return found[0]


def pod_spec(objects: tuple[Object, ...]) -> Object:
    return one(objects, "DaemonSet")["spec"]["template"]["spec"]


def agent(objects: tuple[Object, ...]) -> Object:
    (container,) = pod_spec(objects)["containers"]
    return container


def environment(objects: tuple[Object, ...]) -> dict[str, str]:
    """The agent's variables; those from fields with a value of the right form."""
    fields = {
        "spec.nodeName": "node-1",
        "metadata.uid": "3f0c5a2e-11aa-4b0a-9d7e-0a1b2c3d4e5f",
        "metadata.namespace": one(objects, "DaemonSet")["metadata"]["namespace"],
    }
    return {
        entry["name"]: entry["value"] if "value" in entry else fields[entry["valueFrom"]["fieldRef"]["fieldPath"]]
        for entry in agent(objects)["env"]
    }
