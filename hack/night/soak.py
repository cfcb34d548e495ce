"""A long life on the embedded cluster: random pods, faults and restarts; then nothing is left, nothing has grown.

Whole GPUs, MIG partitions, time slices and MPS daemons are claimed by pods that come and go, while GPUs are lost and
found, calls are slow, and the agent (killed or stopped), the kubelet and the API server are started anew. Every now and
then the faults end, and whatever can run has to come to run. The agent's last life is the longest: what it takes up
after its warm-up is compared with what it takes up in the end.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import logging
import random
import signal
import sys
import tempfile
import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml

from driver.localcluster.apiserver.errors import StatusError
from driver.localcluster.cluster import LocalCluster
from hack.night.process import Agent, Use

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

ROOT = Path(__file__).parents[2]
NODE = "node-a"
NAMESPACE = "default"
GPUS = "h100:8"
SETTINGS = ("--dynamic-mig=6,7", "--resync-interval=2s", "--health-interval=2s", "--xid-quiet-time=2s")
MOST_PODS = 14
PATIENCE = 90.0
"""Seconds that anything may take that has to come about."""
GROWTH_MIB, GROWTH_FILES = 8.0, 4
"""What a life's end may differ from its beginning: caches fill."""
MOST_SOCKETS = 44
"""The API client keeps up to 32 connections after a burst (`kube.transport`), so their number swings; beside them are
some ten of the kubelet's. One that leaked at each restart of the API server would be beyond that by the end."""

_GPU, _MIG = "gpu.nvidia.com", "mig.nvidia.com"
_SLICES = {"strategy": "TimeSlicing", "timeSlicingConfig": {"interval": "Long"}}
_MPS = {"strategy": "MPS", "mpsConfig": {"defaultActiveThreadPercentage": 50}}


def _template(device_class: str, count: int = 1, profile: str = "", sharing: dict[str, Any] | None = None) -> Any:
    exactly: dict[str, Any] = {"deviceClassName": device_class, "allocationMode": "ExactCount", "count": count}
    if profile:
        exactly["selectors"] = [{"cel": {"expression": f"device.attributes['{_GPU}'].profile == '{profile}'"}}]
    devices: dict[str, Any] = {"requests": [{"name": "gpus", "exactly": exactly}]}
    if sharing is not None:
        parameters = {"apiVersion": "resource.nvidia.com/v1beta1", "kind": "GpuConfig", "sharing": sharing}
        devices["config"] = [{"opaque": {"driver": _GPU, "parameters": parameters}}]
    return {"spec": {"spec": {"devices": devices}}}


TEMPLATES = {
    "one": _template(_GPU),
    "three": _template(_GPU, 3),
    "slices": _template(_GPU, sharing=_SLICES),
    "mps": _template(_GPU, 2, sharing=_MPS),
    "small": _template(_MIG, profile="1g.10gb"),
    "smalls": _template(_MIG, 3, profile="1g.10gb"),
    "large": _template(_MIG, profile="3g.40gb"),
}
FAULTS: tuple[dict[str, Any], ...] = (
    {"gpus": {"0": {"lost": True}}},
    {"gpus": {"6": {"lost": True}, "2": {"lost": True}}},
    {"gpus": {"1": {"slow": 0.2}}},
    {"gpus": {"3": {"xid": [13, 31]}}},
    {"nvml": "down"},
)


class SoakError(Exception):
    """What had to come about did not."""


@dataclass(frozen=True, kw_only=True)
class Findings:
    """What a soak says."""

    done: Counter[str]
    warm: Use
    end: Use
    seconds: float

    def grown(self) -> list[str]:
        """Return what has grown by more than it may."""
        found = []
        if self.end.mib > self.warm.mib + GROWTH_MIB:
            found.append("memory")
        if self.end.files > self.warm.files + GROWTH_FILES:
            found.append("open files")
        if self.end.sockets > MOST_SOCKETS:
            found.append("sockets")
        if self.end.threads > self.warm.threads + GROWTH_FILES:
            found.append("threads")
        return found

    def __str__(self) -> str:
        done = ", ".join(f"{number} x {what}" for what, number in sorted(self.done.items()))
        return (
            f"in {self.seconds:.0f} s: {done}\n"
            "nothing is left: no pod, claim, CDI file, record, MIG device, or daemon; all GPUs are offered and well\n"
            f"the agent after its warm-up: {self.warm}\nthe agent in the end:         {self.end}"
        )


class Soak:
    """One node's life, as random as its seed."""

    def __init__(self, root: Path, seed: int) -> None:
        self._random = random.Random(seed)
        self._cluster = LocalCluster(root, nodes=(NODE,), time_scale=0.05)
        self._store = self._cluster.store
        self._node = self._cluster.node(NODE)
        command = self._cluster.agent_command(NODE, gpus=GPUS)
        self._faults = root / "faults.yaml"
        self._agent = Agent([*command[1:], *SETTINGS, f"--faults-file={self._faults}"], root / "agent.log")
        self._done: Counter[str] = Counter()
        self._pods = 0

    async def run(self, seconds: float) -> Findings:
        """Live for so long; return what came of it.

        :raises SoakError: something did not come about, or something is left.
        """
        began = time.monotonic()
        async with self._cluster, self._agent.running():
            self._set_up()
            try:
                await self._live(began + seconds / 3, [*self._gentle(), *self._lives()])
                await self._restart_agent(signal.SIGTERM)
                await self._live(began + seconds * 0.55, self._gentle())
                warm = await self._emptied()
                await self._live(began + seconds, self._gentle())
                end = await self._emptied()
            except (SoakError, TimeoutError) as exc:
                raise SoakError(
                    f"{exc}\ndone so far: {dict(self._done)}\nthe agent's log:\n{self._agent.tail()}"
                ) from exc
        return Findings(done=self._done, warm=warm, end=end, seconds=time.monotonic() - began)

    def _set_up(self) -> None:
        for item in yaml.safe_load_all((ROOT / "deploy/base/deviceclasses.yaml").read_text()):
            self._store.create("deviceclasses", item)
        for name, template in TEMPLATES.items():
            self._store.create("resourceclaimtemplates", {"metadata": {"name": name}, **template}, NAMESPACE)

    # --- what happens ------------------------------------------------------------------------------------------------

    def _gentle(self) -> list[Callable[[], Awaitable[None]]]:
        """Return what leaves the agent's process alone; pods come and go most of the time."""
        pods = [self._add_pod] * 6 + [self._remove_pod] * 4
        return [*pods, self._break_gpus, self._mend_gpus, self._restart_kubelet, self._restart_apiserver]

    def _lives(self) -> list[Callable[[], Awaitable[None]]]:
        return [lambda: self._restart_agent(signal.SIGKILL), lambda: self._restart_agent(signal.SIGTERM)]

    async def _live(self, until: float, events: list[Callable[[], Awaitable[None]]]) -> None:
        """Let random things happen, and now and then peace."""
        while time.monotonic() < until:
            for _ in range(self._random.randint(10, 25)):
                await self._random.choice(events)()
                await asyncio.sleep(self._random.choice((0, 0.05, 0.3)))
            await self._peace()

    async def _add_pod(self) -> None:
        if len(self._present("pods")) >= MOST_PODS:
            return
        template = self._random.choice(list(TEMPLATES))
        self._pods += 1
        uses = [{"name": "gpus", "resourceClaimTemplateName": template}]
        command = ["sh", "-c", "trap 'exit 0' TERM; nvidia-smi -L; sleep 1000 & wait"]
        container = {"name": "c", "image": "busybox", "command": command, "resources": {"claims": [{"name": "gpus"}]}}
        spec = {"containers": [container], "resourceClaims": uses, "terminationGracePeriodSeconds": 1}
        self._store.create("pods", {"metadata": {"name": f"pod-{self._pods}"}, "spec": spec}, NAMESPACE)
        self._done["pods"] += 1

    async def _remove_pod(self) -> None:
        if pods := self._present("pods"):
            self._delete(self._random.choice(pods))

    async def _break_gpus(self) -> None:
        self._faults.write_text(yaml.safe_dump(self._random.choice(FAULTS)))
        self._done["faults"] += 1

    async def _mend_gpus(self) -> None:
        self._faults.write_text("")

    async def _restart_kubelet(self) -> None:
        await self._node.kubelet.restart()
        self._done["kubelet restarts"] += 1

    async def _restart_apiserver(self) -> None:
        await self._cluster.apiserver.stop()
        await asyncio.sleep(self._random.choice((0.0, 0.5)))
        await self._cluster.apiserver.start()
        self._done["API server restarts"] += 1

    async def _restart_agent(self, number: signal.Signals) -> None:
        await self._agent.restart(number)
        self._done[f"agent restarts by {number.name}"] += 1

    def _delete(self, pod: dict[str, Any]) -> None:
        with contextlib.suppress(StatusError):
            self._store.delete("pods", pod["metadata"]["name"], NAMESPACE)

    # --- what must come about ----------------------------------------------------------------------------------------

    async def _peace(self) -> None:
        """End the faults: all GPUs are offered and well, and every pod that has a node runs, its claims prepared."""
        await self._mend_gpus()
        await self._until(self._all_are_offered, "all GPUs are offered and well")
        await self._until(self._all_run, "every pod that was placed runs, and what is prepared is what runs")
        self._done["times of peace"] += 1

    async def _emptied(self) -> Use:
        """Delete all and see that nothing is left; return what the agent takes up then."""
        await self._peace()
        for pod in self._present("pods"):
            self._delete(pod)
        await self._until(self._nothing_is_left, "nothing is left")
        await self._until(self._all_are_offered, "all GPUs are offered and well")
        return self._agent.use()

    def _all_are_offered(self) -> str:
        slices = self._store.list("resourceslices")
        whole = [item for item in slices if item["spec"]["pool"]["resourceSliceCount"] == len(slices)]
        devices = [device for item in whole for device in item["spec"].get("devices") or ()]
        gpus = {device["name"] for device in devices if device["attributes"].get("type", {}).get("string") == "gpu"}
        ill = [device["name"] for device in devices if device.get("taints")]
        return "" if len(gpus) == 8 and not ill else f"{len(gpus)} GPUs are offered, of which {ill} are tainted"

    def _all_run(self) -> str:
        pods = [pod for pod in self._present("pods") if pod["spec"].get("nodeName")]
        phases = {pod["metadata"]["name"]: (pod.get("status") or {}).get("phase") for pod in pods}
        if waiting := [name for name, phase in phases.items() if phase != "Running"]:
            return f"{waiting} do not run: {[phases[name] for name in waiting]}"
        held = {claim["metadata"]["uid"] for claim in self._present("resourceclaims") if _in_use(claim)}
        prepared, files = self._prepared()
        return (
            "" if held == prepared == files else f"held {sorted(held)}, records {sorted(prepared)}, CDI {sorted(files)}"
        )

    def _nothing_is_left(self) -> str:
        state = self._node.kubelet_root / f"plugins/{_GPU}"
        mig = yaml.safe_load(_text(state / "fake-mig.json") or "{}").get("gpus") or {}
        left = {
            "pods": [pod["metadata"]["name"] for pod in self._present("pods")],
            "claims": [claim["metadata"]["name"] for claim in self._present("resourceclaims")],
            "records": sorted(self._prepared()[0]),
            "CDI files": sorted(self._prepared()[1]),
            "MIG devices": [uuid for uuid, board in mig.items() if board.get("instances")],
            "quarantined": [path.name for path in state.glob("claims/quarantine/*")],
            "daemons": [path.name for path in state.glob("mps/*") if path.is_dir()],
        }
        return "" if not any(left.values()) else f"left: { {what: found for what, found in left.items() if found} }"

    def _prepared(self) -> tuple[set[str], set[str]]:
        """Return the UIDs of the claims that have a record, and of those that have a CDI file."""
        records = (self._node.kubelet_root / f"plugins/{_GPU}/claims").glob("*.json")
        files = self._node.cdi_dirs[1].glob("*claim*_*.json")
        return {path.stem for path in records}, {path.stem.rpartition("_")[2] for path in files}

    def _present(self, resource: str) -> list[dict[str, Any]]:
        return self._store.list(resource, NAMESPACE)

    async def _until(self, why_not: Callable[[], str], what: str) -> None:
        deadline = time.monotonic() + PATIENCE
        while why := why_not():
            if time.monotonic() > deadline:
                raise SoakError(f"not within {PATIENCE:g} s: {what}; {why}")
            await asyncio.sleep(0.1)


def _in_use(claim: dict[str, Any]) -> bool:
    return bool((claim.get("status") or {}).get("reservedFor"))


def _text(path: Path) -> str:
    return path.read_text() if path.exists() else ""


def main() -> int:
    """Parse the arguments, soak, print; return the exit status."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--minutes", type=float, default=5)
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(1 << 32))
    arguments = parser.parse_args()
    logging.basicConfig(level=logging.ERROR)  # that a call fails while its plugin is away is what this is about
    print(f"seed {arguments.seed}", flush=True)
    with tempfile.TemporaryDirectory(prefix="gs", dir="/tmp") as directory:
        try:
            findings = asyncio.run(Soak(Path(directory), arguments.seed).run(arguments.minutes * 60))
        except SoakError as exc:
            print(f"FAILED: {exc}")
            return 1
    print(findings)
    if grown := findings.grown():
        print(f"FAILED: {', '.join(grown)} of the agent grew")
    return 1 if grown else 0


if __name__ == "__main__":
    sys.exit(main())
