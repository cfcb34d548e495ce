"""A kubelet that restarts: what it does again, what it does not, what it makes up for."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.waiting import until

from .test_claims import gone, names, running
from .test_recorded_calls import publish_slice

if TYPE_CHECKING:
    from .conftest import Bench


async def test_a_running_pod_is_left_alone(bench: Bench) -> None:
    bench.cdi("gpu-0")
    plugin = await bench.registered()
    publish_slice(bench)
    bench.claim("c1")
    bench.pod("p", "c1")
    await running(bench, "p")
    before = bench.status("p")
    await bench.kubelet.restart()
    await until(lambda: len(plugin.status) == 2, "the plugin is registered anew")
    assert bench.store.list("resourceslices") == []
    assert bench.status("p") == before
    assert names(plugin, "NodePrepareResources") == [["c1"]]
    bench.delete("p")
    await gone(bench, "p")
    assert names(plugin, "NodeUnprepareResources") == [["c1"]]


async def test_a_second_pod_has_the_claim_prepared_again(bench: Bench) -> None:
    bench.cdi("gpu-0")
    plugin = await bench.registered()
    bench.claim("c1")
    bench.pod("p", "c1")
    await running(bench, "p")
    await bench.kubelet.restart()
    await until(lambda: len(plugin.status) == 2)
    bench.pod("q", "c1", script="echo $GPU; sleep 100")
    await running(bench, "q")
    assert names(plugin, "NodePrepareResources") == [["c1"], ["c1"]]
    await until(lambda: bench.log("q") == "gpu-0\n", "the output")


async def test_a_pod_created_meanwhile_is_started(bench: Bench) -> None:
    bench.cdi("gpu-0")
    await bench.registered()
    await bench.kubelet.kill()
    bench.claim("c1")
    bench.pod("p", "c1")
    await bench.kubelet.start()
    await running(bench, "p")


async def test_a_pod_deleted_meanwhile_is_cleaned_up(bench: Bench) -> None:
    bench.cdi("gpu-0")
    plugin = await bench.registered()
    bench.claim("c1")
    bench.pod("p", "c1")
    await running(bench, "p")
    await bench.kubelet.kill()
    bench.delete("p", grace=0)
    assert bench.phase("p") == "gone"
    await bench.kubelet.start()
    await until(lambda: names(plugin, "NodeUnprepareResources") == [["c1"]])
    await until(lambda: not bench.kubelet.runtime.containers, "its containers are removed")


async def test_a_pod_that_ended_meanwhile_is_seen_to_have_ended(bench: Bench) -> None:
    flag = bench.paths.root / "go"
    volume = {"name": "v", "hostPath": {"path": str(bench.paths.root)}}
    container = {
        "name": "c",
        "image": "x",
        "command": ["sh", "-c", f"while ! test -e {flag} -o -e /v/go; do sleep 0.01; done; exit 3"],
        "volumeMounts": [{"name": "v", "mountPath": "/v"}],
    }
    bench.pod("p", containers=[container], volumes=[volume], restartPolicy="Never")
    await running(bench, "p")
    await bench.kubelet.kill()
    flag.touch()
    await until(lambda: not any(item.running for item in bench.kubelet.runtime.containers.values()))
    await bench.kubelet.start()
    await until(lambda: bench.phase("p") == "Failed")
    assert bench.status("p")["state"]["terminated"]["exitCode"] == 3
    assert bench.status("p")["restartCount"] == 0


async def test_a_finished_pod_stays_finished(bench: Bench) -> None:
    bench.pod("p", script="exit 0", restartPolicy="Never")
    await until(lambda: bench.phase("p") == "Succeeded")
    before = bench.get("p")
    await bench.kubelet.restart()
    assert bench.get("p") == before
    bench.delete("p")
    await gone(bench, "p")


async def test_a_bad_checkpoint_does_not_stop_the_kubelet(bench: Bench) -> None:
    await bench.kubelet.kill()
    bench.paths.claims_checkpoint.write_text("{", encoding="utf-8")
    bench.paths.devices_checkpoint.write_text("[]", encoding="utf-8")
    await bench.kubelet.start()
    bench.pod("p")
    await running(bench, "p")
