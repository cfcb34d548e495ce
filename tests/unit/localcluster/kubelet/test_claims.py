"""Claims of pods on a node: what a plugin is called with, and when."""

from __future__ import annotations

from .conftest import Bench, until


async def test_a_claim_reaches_the_container(bench: Bench) -> None:
    plugin = await bench.registered()
    bench.cdi("gpu-0")
    claim = bench.claim("c1")
    bench.pod("p1", "c1", script="echo gpu is $GPU", restartPolicy="Never")
    await until(lambda: bench.phase("p1") == "Succeeded", "the pod ends")
    assert bench.log("p1") == "gpu is gpu-0\n"
    asked = {"claims": [{"namespace": "default", "uid": claim["metadata"]["uid"], "name": "c1"}]}
    assert plugin.recorder.of("NodePrepareResources") == [asked]
    await until(lambda: plugin.recorder.of("NodeUnprepareResources") == [asked], "unprepared")
    bench.delete("p1")
    await until(lambda: bench.phase("p1") == "gone", "the pod goes")
