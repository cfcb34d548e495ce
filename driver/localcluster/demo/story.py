"""The demo's story, step by step; each step waits for an event and says what it saw."""

from __future__ import annotations

import asyncio
import contextlib
import re
from collections import Counter
from typing import TYPE_CHECKING, Any, TypeVar

from driver.errors import DriverError
from driver.localcluster.apiserver.errors import StatusError
from driver.localcluster.cluster import LocalCluster
from driver.localcluster.demo import manifests
from driver.localcluster.demo.agent import AgentProcess
from driver.localcluster.kubelet.times import Times
from driver.localcluster.scheduler.requests import RESULTS_MAX

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Coroutine
    from pathlib import Path

    from driver.localcluster.apiserver import Store
    from driver.localcluster.cluster import LocalNode
    from driver.localcluster.demo.screen import Screen

T = TypeVar("T")

NODE = "node-a"
PODS = ("vllm-0", "vllm-1")
GREEDY = "one-too-many"
_REMOVABLE = ("deployments", "statefulsets", "daemonsets", "replicasets", "jobs", "pods", "resourceclaims")
"""What may keep pods or claims alive, owners first. With --keep, people add to these and take away."""
_HASTE = 0.1
"""Factor on the waits of the kubelet that nobody would watch."""
PATIENCE = 15.0
"""Seconds that a step may take."""
MISCONFIGURED = 2
"""The exit status of an agent whose settings are wrong."""


class StoryError(Exception):
    """The story can't go on."""


class ArgumentsError(StoryError):
    """It can't begin: the demo was asked for what there is not."""


class Story:
    """Told once, on a node with the GPUs of `gpus`, unless `stop` is set before its end."""

    def __init__(self, root: Path, screen: Screen, *, gpus: str, kubernetes: str, stop: asyncio.Event) -> None:
        self._root = root
        self._stop = stop
        self._screen = screen
        self._gpus = gpus
        try:
            times = Times(grace=1 / _HASTE)  # what people write with --keep, grace and deadlines, holds as written
            self._cluster = LocalCluster(root, nodes=(NODE,), kubernetes=kubernetes, time_scale=_HASTE, times=times)
        except DriverError as exc:
            raise ArgumentsError(str(exc)) from exc
        command = self._cluster.agent_command(NODE, gpus=gpus)
        self._agent = AgentProcess(command[1:], root / "agent.log")

    @property
    def kubeconfig(self) -> Path:
        """The cluster's kubeconfig."""
        return self._cluster.kubeconfig

    @property
    def kubelet_root(self) -> Path:
        """The kubelet's root on the node."""
        return self._node.kubelet_root

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[Story]:
        """Start the cluster and the agent, stop both at the end."""
        self._screen.heading(f"A node with {self._gpus}, Kubernetes and the driver")
        self._screen.waiting("starting the cluster")
        async with self._cluster:
            self._screen.done(f"embedded cluster at {self._cluster.apiserver.url}: API server, scheduler, kubelet")
            async with self._agent.running():
                yield self

    async def tell(self) -> None:
        """Publish, claim, run, look; one claim too many stays pending."""
        devices = await self._publish()
        product, pattern, count = _choose(devices)
        await self._claim(product, pattern, count)
        self._show_claims()
        await self._show_containers()

    async def clean_up(self) -> None:
        """Delete all and prove that nothing is left."""
        self._screen.heading("Delete all")
        for resource in _REMOVABLE:
            for obj in self._store.list(resource):
                with contextlib.suppress(StatusError):  # it has gone by itself, or with its owner
                    self._store.delete(resource, obj["metadata"]["name"], obj["metadata"].get("namespace"))
        self._screen.waiting("the pods end")
        await self._until("pods", lambda pods: not pods, "the pods are gone")
        await self._until("resourceclaims", lambda claims: not claims, "their claims are gone, with all allocations")
        self._prove_nothing_is_left()
        status = await self._agent.stop()
        self._screen.check(status == 0, "the agent ended on SIGTERM with status 0", f"the agent ended with {status}")
        sockets = [str(path) for path in self._node.kubelet_root.glob("plugins*/**/*.sock")]
        self._screen.check(not sockets, "its sockets are gone", f"sockets are left: {', '.join(sockets)}")

    @property
    def _store(self) -> Store:
        return self._cluster.store

    @property
    def _node(self) -> LocalNode:
        return self._cluster.node(NODE)

    # --- steps -------------------------------------------------------------------------------------------------------

    async def _publish(self) -> list[dict[str, Any]]:
        self._screen.waiting("the agent starts")
        slices = await self._until("resourceslices", _complete, "the agent published its ResourceSlices")
        devices = [device for one in slices for device in one["spec"].get("devices", ())]
        self._screen.heading("The node's GPUs, as the scheduler sees them")
        header = ("DEVICE", "PRODUCT", "MEMORY", "CC", "NUMA", "PCIE ROOT", "NVLINK DOMAIN", "DRIVER")
        self._screen.table(header, [_device_row(device) for device in devices])
        return devices

    async def _claim(self, product: str, pattern: str, count: int) -> None:
        self._screen.heading(f"Two pods that want {count} x {product} each, and one that wants one more")
        self._store.create("deviceclasses", manifests.device_class())
        self._store.create("resourceclaimtemplates", manifests.template("gpus", count, pattern))
        self._screen.done(f'template: {count} GPUs with productName.matches("{pattern}")')
        for name in PODS:
            self._create_pod(name, "gpus")
            self._screen.waiting(f"pod {name} starts")
            await self._until_pod(name, _is_running, f"pod {name} runs")
        left = sum(_product(device) == product for device in await self._free()) + 1
        self._store.create("resourceclaimtemplates", manifests.template("more", left, pattern))
        self._create_pod(GREEDY, "more")
        pod = await self._until_pod(GREEDY, _reason, f"pod {GREEDY} stays pending, as it should")
        self._screen.text(f"reason: {_reason(pod)}", indent="          ")

    def _create_pod(self, name: str, template: str) -> None:
        self._store.create("pods", manifests.pod(name, template))

    async def _free(self) -> list[dict[str, Any]]:
        taken = {result["device"] for claim in self._store.list("resourceclaims") for result in _results(claim)}
        slices = self._store.list("resourceslices")
        return [one for item in slices for one in item["spec"].get("devices", ()) if one["name"] not in taken]

    def _show_claims(self) -> None:
        self._screen.heading("The claims")
        rows = []
        for claim in self._store.list("resourceclaims"):
            devices = [result["device"] for result in _results(claim)]
            holders = [holder["name"] for holder in claim.get("status", {}).get("reservedFor", ())]
            rows.append((claim["metadata"]["name"], "allocated" if devices else "pending", holders, " ".join(devices)))
        self._screen.table(
            ("CLAIM", "STATE", "POD", "DEVICES"),
            [(name, state, ", ".join(pods), gpus) for name, state, pods, gpus in rows],
        )
        given = Counter(result["device"] for claim in self._store.list("resourceclaims") for result in _results(claim))
        twice = [device for device, times in given.items() if times > 1]
        self._screen.check(not twice, "no GPU was given twice", f"given twice: {', '.join(twice)}")

    async def _show_containers(self) -> None:
        for name in PODS:
            self._screen.heading(f"What the container of {name} sees")
            pod = self._store.get("pods", name, manifests.NAMESPACE)
            log = await self._log(pod)
            self._screen.text(log)
            wanted = self._uuids(pod)
            seen = set(re.findall(r"UUID: (GPU-[0-9a-f-]+)", log))
            self._screen.check(
                seen == wanted and bool(seen),
                "nvidia-smi in the container lists exactly the GPUs of its claim",
                f"the container of {name} sees {sorted(seen)}, its claim has {sorted(wanted)}",
            )

    async def _log(self, pod: dict[str, Any]) -> str:
        async def read() -> str:
            while True:
                path = self._node.kubelet.log_path(pod["metadata"]["uid"], "main")
                text = path.read_text() if path is not None else ""
                if manifests.LAST_LINE in text:
                    return text.partition(manifests.LAST_LINE)[0].rstrip()
                await asyncio.sleep(0.02)

        return await self._patiently(read(), f"the log of pod {pod['metadata']['name']}")

    def _uuids(self, pod: dict[str, Any]) -> set[str]:
        names = {one["resourceClaimName"] for one in pod["status"]["resourceClaimStatuses"]}
        claims = [self._store.get("resourceclaims", name, manifests.NAMESPACE) for name in names]
        wanted = {result["device"] for claim in claims for result in _results(claim)}
        slices = self._store.list("resourceslices")
        devices = [device for one in slices for device in one["spec"].get("devices", ())]
        return {device["attributes"]["uuid"]["string"] for device in devices if device["name"] in wanted}

    def _prove_nothing_is_left(self) -> None:
        cdi = [path.name for directory in self._node.cdi_dirs for path in directory.glob("*claim*")]
        self._screen.check(not cdi, "no CDI file is left", f"CDI files are left: {', '.join(cdi)}")
        records = [path.name for path in self._node.kubelet_root.glob("plugins/*/claims/**/*.json")]
        self._screen.check(not records, "no record is left", f"records are left: {', '.join(records)}")

    # --- waiting -----------------------------------------------------------------------------------------------------

    async def _until_pod(self, name: str, holds: Callable[[dict[str, Any]], object], what: str) -> dict[str, Any]:
        def found(pods: list[dict[str, Any]]) -> bool:
            return any(pod["metadata"]["name"] == name and holds(pod) for pod in pods)

        pods = await self._until("pods", found, what)
        return next(pod for pod in pods if pod["metadata"]["name"] == name)

    async def _until(
        self, resource: str, holds: Callable[[list[dict[str, Any]]], bool], what: str
    ) -> list[dict[str, Any]]:
        """Wait until the objects of a resource are as they should be; look again at every change."""

        async def watch() -> list[dict[str, Any]]:
            if holds(objects := self._store.list(resource)):
                return objects
            async for _ in self._store.watch(resource):
                if holds(objects := self._store.list(resource)):
                    return objects
            raise StoryError(f"the watch of {resource} ended")

        objects = await self._patiently(watch(), what)
        self._screen.done(what)
        return objects

    async def _patiently(self, work: Coroutine[Any, Any, T], what: str) -> T:
        """Wait for work, but not for ever, not for an agent that is gone, and not for who wants to stop."""
        task, agent = asyncio.create_task(work), asyncio.create_task(self._agent.ended())
        stop = asyncio.create_task(self._stop.wait())
        try:
            done, _ = await asyncio.wait({task, agent, stop}, timeout=PATIENCE, return_when=asyncio.FIRST_COMPLETED)
            if task in done:
                return await task
            if agent in done:
                raise _fate(await agent, self._agent)
            if stop in done:
                raise StoryError("interrupted")
            raise StoryError(f"waited {PATIENCE:g} s in vain: {what}; the agent says:\n{self._agent.tail()}")
        except StatusError as exc:
            raise StoryError(f"{what}: {exc}") from exc
        finally:
            for one in (task, agent, stop):
                one.cancel()
            await asyncio.gather(task, agent, stop, return_exceptions=True)


def _fate(status: int, agent: AgentProcess) -> StoryError:
    """Return the error of an agent that ended by itself; where its settings were wrong, its last line says all."""
    if status == MISCONFIGURED:
        return ArgumentsError(agent.last_words())
    return StoryError(f"the agent ended with status {status}:\n{agent.tail()}")


def _complete(slices: list[dict[str, Any]]) -> bool:
    return bool(slices) and len(slices) == slices[0]["spec"]["pool"]["resourceSliceCount"]


def _product(device: dict[str, Any]) -> str:
    return str(device["attributes"].get("productName", {}).get("string", ""))


def _choose(devices: list[dict[str, Any]]) -> tuple[str, str, int]:
    """Return the most numerous product, a pattern that means only it, and what a claim gets: half, within limits."""
    whole = [device for device in devices if device["attributes"]["type"]["string"] == "gpu"]
    counts = Counter(_product(device) for device in whole)
    if not counts or counts.most_common(1)[0][1] < 2:
        raise StoryError("the demo wants at least two whole GPUs of one product: try --gpus h100:8")
    product, count = counts.most_common(1)[0]
    words = [word for word in re.findall(r"[A-Za-z0-9]+", product) if re.search(r"\d", word)]
    patterns = [word for word in words if not any(re.search(word, other) for other in counts if other != product)]
    return (
        product,
        patterns[0] if patterns else f"^{re.escape(product)}$".replace("\\", "\\\\"),
        min(count // 2, RESULTS_MAX),
    )


def _device_row(device: dict[str, Any]) -> tuple[object, ...]:
    attributes = {name: next(iter(value.values())) for name, value in device["attributes"].items()}
    return (
        device["name"],
        attributes.get("productName"),
        device.get("capacity", {}).get("memory", {}).get("value"),
        attributes.get("cudaComputeCapability"),
        attributes.get("resource.kubernetes.io/numaNode"),
        attributes.get("resource.kubernetes.io/pcieRoot"),
        attributes.get("nvlinkDomain"),
        attributes.get("driverVersion"),
    )


def _results(claim: dict[str, Any]) -> list[dict[str, Any]]:
    allocation = claim.get("status", {}).get("allocation") or {}
    return list(allocation.get("devices", {}).get("results", ()))


def _is_running(pod: dict[str, Any]) -> bool:
    return bool(pod.get("status", {}).get("phase") == "Running")


def _reason(pod: dict[str, Any]) -> str:
    for condition in pod.get("status", {}).get("conditions", ()):
        if condition["type"] == "PodScheduled" and condition["status"] == "False":
            return str(condition.get("message", ""))
    return ""
