"""The recorded kubelet, step by step: the same happens here, and the same calls must come, in the same order."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from driver.localcluster.apiserver.objects import clone
from tests.waiting import until

from .conftest import NODE, Bench
from .plugins import DRIVER, Call, Recorder, device

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

LINES = (Path(__file__).parents[3] / "data" / "recordings" / "kubelet-calls.jsonl").read_text(encoding="utf-8")
RECORDED: list[dict[str, Any]] = [json.loads(line) for line in LINES.splitlines()]


class Play:
    """Does what the recording's markers say was done."""

    def __init__(self, bench: Bench) -> None:
        self.bench = bench
        self.recorder = Recorder()
        self.plugin = bench.dra(self.recorder)
        self.failures = 0
        bench.cdi("gpu-0")
        for name in ("p1-g", "p2-g", "shared", "f1-g"):
            bench.claim(name)
        self.actions: dict[str, Callable[[], Awaitable[None]]] = {
            "pod with one container, claim from template, created": lambda: self.create("p1", "p1-g"),
            "that pod deleted": lambda: self.delete("p1"),
            "pod with two containers sharing one template claim, created": self.two_containers,
            "two pods sharing one named ResourceClaim, created one after another": self.two_pods,
            "first of the two sharing pods deleted": lambda: self.delete("s1"),
            "plugin process restarted (SIGKILL, new process, same socket paths) while the second sharing pod runs":
                self.restart_plugin,
            "second sharing pod deleted": lambda: self.delete("s2"),
            "— next recording, clock restarted —": self.nothing,
            "plugin restarted; it will fail the first two NodePrepareResources calls": self.restart_failing,
            "pod created": lambda: self.create("f1", "f1-g"),
            "kubelet restarted while the pod runs": self.restart_kubelet,
            "15 s later (ResourceSlices of the driver on this node: 0, published by hand and not republished)":
                self.no_slices,
            "pod deleted": lambda: self.delete("f1"),
        }  # fmt: skip

    async def nothing(self) -> None:
        """Nothing happened."""

    async def create(self, name: str, claim: str) -> None:
        self.bench.pod(name, claim)
        await self.running(name)

    async def running(self, name: str) -> None:
        await until(lambda: self.bench.phase(name) == "Running", f"{name} runs")

    async def delete(self, name: str) -> None:
        self.bench.delete(name)
        await until(lambda: self.bench.phase(name) == "gone", f"{name} goes")

    async def two_containers(self) -> None:
        container = {
            "image": "busybox",
            "command": ["sleep", "100"],
            "resources": {"claims": [{"name": "p2-g"}]},
        }
        containers = [{"name": "a", **container}, {"name": "b", **container}]
        self.bench.pod("p2", "p2-g", containers=containers)
        await self.running("p2")
        await self.delete("p2")  # by hand, in the recording

    async def two_pods(self) -> None:
        await self.create("s1", "shared")
        await self.create("s2", "shared")

    async def restart_plugin(self) -> None:
        await self.plugin.kill()
        self.plugin = self.bench.dra(self.recorder)
        await self.plugin.start()
        await until(lambda: self.plugin.status, "the new plugin is registered")

    async def restart_failing(self) -> None:
        await self.restart_plugin()
        self.plugin.answer = self.fail_twice

    def fail_twice(self, method: str, claim: Any) -> dict[str, Any]:
        if method == "prepare" and self.failures < 2:
            self.failures += 1
            return {"error": "not yet"}
        return {"devices": [device()]}

    async def restart_kubelet(self) -> None:
        publish_slice(self.bench)
        await self.bench.kubelet.restart()

    async def no_slices(self) -> None:
        assert self.bench.store.list("resourceslices") == []


def publish_slice(bench: Bench, driver: str = DRIVER) -> None:
    pool = {"name": NODE, "generation": 1, "resourceSliceCount": 1}
    spec = {"driver": driver, "nodeName": NODE, "pool": pool, "devices": [{"name": "gpu-0"}]}
    bench.store.create("resourceslices", {"metadata": {"generateName": "s-"}, "spec": spec})


def comparable(method: str, request: dict[str, Any], deadline: float | None, known: dict[str, int]) -> Any:
    """Return a call without what differs by nature: claims are numbered as they appear."""
    claims = clone(request).get("claims", [])
    numbers = [known.setdefault(claim["uid"], len(known)) for claim in claims]
    rest = {key: value for key, value in request.items() if key != "claims"}
    return method, numbers, rest, None if deadline is None else round(deadline)


async def test_the_recorded_sequence(bench: Bench) -> None:
    play = Play(bench)
    await play.plugin.start()
    expected, known, ours = [], dict[str, int](), dict[str, int]()
    for line in RECORDED:
        if "marker" in line:
            await until(lambda: len(play.recorder.calls) >= len(expected), f"the calls before {line['marker']}")
            await play.actions[line["marker"]]()
        else:
            expected.append(comparable(line["method"], line["request"], line["deadline_s"], known))
    await until(lambda: len(play.recorder.calls) >= len(expected), "the last calls")
    calls: list[Call] = play.recorder.calls
    assert [comparable(call.method, call.request, call.deadline, ours) for call in calls] == expected
