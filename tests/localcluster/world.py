"""A cluster of one node with the agent on it, as pods and people meet it."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import sys
from typing import TYPE_CHECKING, Any

import pytest

from driver.localcluster.apiserver.objects import clone, metadata
from driver.localcluster.cluster import LocalCluster

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

GPU = "nvidia.com/gpu"
NODE = "node-a"


class World:
    """A cluster of one node with the agent on it."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.cluster = LocalCluster(root / "c", time_scale=0.05)
        self.store = self.cluster.store
        self.config = root / "config"
        self.rules = root / "rules.yaml"

    @contextlib.asynccontextmanager
    async def agent(self, *flags: str, gpus: str = "h100:4") -> AsyncIterator[None]:
        command = [sys.executable, "-m", "driver", *self.cluster.agent_command(NODE, gpus=gpus)[1:], *flags]
        environment = {name: value for name, value in os.environ.items() if not name.startswith("GPU_DRA_")}
        with (self.root / "agent.log").open("ab") as log:
            process = await asyncio.create_subprocess_exec(*command, stdout=log, stderr=log, env=environment)
        try:
            yield
        except BaseException:
            sys.stderr.write((self.root / "agent.log").read_text())
            raise
        finally:
            if process.returncode is None:
                process.terminate()
            async with asyncio.timeout(15):
                await process.wait()

    async def require_mounts(self) -> None:
        """Skip a test whose containers look at their mounts, where the machine allows none."""
        if await self.cluster.node(NODE).kubelet.runtime.mode() == "plain":
            pytest.skip("plain containers see the host's files")

    def counts(self, resource: str = GPU) -> tuple[str, str]:
        """Return (capacity, allocatable) of the node."""
        status = self.store.get("nodes", NODE).get("status") or {}
        return tuple((status.get(kind) or {}).get(resource, "-") for kind in ("capacity", "allocatable"))  # type: ignore[return-value]

    def dra(self) -> list[str]:
        return [one["name"] for item in self.store.list("resourceslices") for one in item["spec"].get("devices") or ()]

    def events(self) -> set[str]:
        return {event["reason"] for event in self.store.list("events")}

    def label(self, value: str | None) -> None:
        node = clone(self.store.get("nodes", NODE))
        node["metadata"].setdefault("labels", {})["nvidia.com/device-plugin.config"] = value
        if value is None:
            del node["metadata"]["labels"]["nvidia.com/device-plugin.config"]
        self.store.update("nodes", node)

    def pod(self, name: str, limits: dict[str, str], script: str = "nvidia-smi -L", **spec: Any) -> None:
        container = {"name": "c", "image": "busybox", "command": ["sh", "-c", script], "resources": {"limits": limits}}
        body = {"restartPolicy": "Never", "containers": [container], **spec}
        self.store.create("pods", {"metadata": {"name": name}, "spec": body}, "default")

    def claiming_pod(self, name: str) -> None:
        device = {"name": "gpu", "exactly": {"deviceClassName": "gpu.nvidia.com"}}
        claim = {"metadata": {"name": name}, "spec": {"devices": {"requests": [device]}}}
        self.store.create("resourceclaims", claim, "default")
        container = {"name": "c", "image": "busybox", "command": ["sh", "-c", "nvidia-smi -L; sleep 600"],
                     "resources": {"claims": [{"name": "gpu"}]}}  # fmt: skip
        body = {"restartPolicy": "Never", "terminationGracePeriodSeconds": 0, "containers": [container],
                "resourceClaims": [{"name": "gpu", "resourceClaimName": name}]}  # fmt: skip
        self.store.create("pods", {"metadata": {"name": name}, "spec": body}, "default")

    def phase(self, name: str) -> str:
        found = self.store.find("pods", name, "default")
        return str((found or {}).get("status", {}).get("phase", "gone"))

    def log(self, name: str) -> list[str]:
        uid = metadata(self.store.get("pods", name, "default"))["uid"]
        path = self.cluster.node(NODE).kubelet.log_path(uid, "c", previous=False)
        return path.read_text().splitlines() if path else []

    def gpus_of(self, name: str) -> set[str]:
        return {line.partition("UUID: ")[2].rstrip(")") for line in self.log(name) if "UUID: " in line}

    async def status(self) -> tuple[int, dict[str, dict[str, Any]]]:
        """Return what `gpu-dra migrate --status` says, by GPU."""
        root = str(self.cluster.node(NODE).kubelet_root)
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "driver", "migrate", "--status", "-o", "json", "--kubelet-root", root,
            stdout=asyncio.subprocess.PIPE,
        )  # fmt: skip
        out, _ = await process.communicate()
        return process.returncode or 0, {gpu["name"]: gpu for gpu in json.loads(out)["gpus"]}
