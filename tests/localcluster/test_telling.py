"""What is told about a pod's devices, on the embedded cluster: in the claim, in the container, on the socket."""

from __future__ import annotations

import asyncio
import json
import sys
from typing import TYPE_CHECKING, Any

from driver.localcluster.apiserver.objects import metadata
from tests.localcluster.world import NODE, World
from tests.waiting import until

if TYPE_CHECKING:
    from driver.localcluster.apiserver.objects import Object

FILE = "/var/run/kubernetes.io/dra-device-attributes/resourceclaimtemplates/mine/gpu/gpu.nvidia.com-metadata.json"


def pod_of_template(world: World, name: str, script: str) -> None:
    device = {"name": "gpu", "exactly": {"deviceClassName": "gpu.nvidia.com"}}
    template = {"metadata": {"name": name}, "spec": {"spec": {"devices": {"requests": [device]}}}}
    world.store.create("resourceclaimtemplates", template, "default")
    container = {"name": "c", "image": "busybox", "command": ["sh", "-c", script],
                 "resources": {"claims": [{"name": "mine"}]}}  # fmt: skip
    body = {"restartPolicy": "Never", "terminationGracePeriodSeconds": 0, "containers": [container],
            "resourceClaims": [{"name": "mine", "resourceClaimTemplateName": name}]}  # fmt: skip
    world.store.create("pods", {"metadata": {"name": name}, "spec": body}, "default")


def claims(world: World) -> list[Object]:
    return list(world.store.list("resourceclaims", "default"))


def healthy(world: World) -> list[str]:
    return [
        one["status"]
        for claim in claims(world)
        for device in (claim.get("status") or {}).get("devices") or ()
        for one in device["conditions"]
        if one["type"] == "Healthy"
    ]


async def gpu_dra(world: World, *words: str) -> Any:
    root = str(world.cluster.node(NODE).kubelet_root)
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "driver", *words, "--kubelet-root", root, stdout=asyncio.subprocess.PIPE
    )
    out, _ = await process.communicate()
    assert process.returncode == 0
    return out.decode()


async def test_a_pods_devices_are_told_of_everywhere(world: World) -> None:
    await world.require_mounts()
    async with world.agent("--device-metadata", "on", "--telemetry-interval", "1", "--resync-interval", "1"):
        pod_of_template(world, "trainer", f"cat {FILE}; sleep 600")
        await until(lambda: len(world.log("trainer") if world.phase("trainer") == "Running" else []) == 2)
        await until(lambda: healthy(world) == ["True"])
        ((claim),) = claims(world)
        (device,) = claim["status"]["devices"]

        versions = [json.loads(line) for line in world.log("trainer")]
        assert [one["apiVersion"].rpartition("/")[2] for one in versions] == ["v1beta1", "v1alpha1"]
        assert versions[0]["podClaimName"] == "mine"
        assert versions[0]["metadata"]["uid"] == metadata(claim)["uid"]
        (inside,) = versions[0]["requests"][0]["devices"]
        assert inside["attributes"]["uuid"] == {"string": device["data"]["uuid"]}

        async def holders() -> list[str]:
            status = json.loads(await gpu_dra(world, "status", "-o", "json"))
            return [one["pod"] for gpu in status["gpus"] for one in gpu["holders"] if one["since"]]

        await until(lambda: _is(holders(), ["default/trainer"]))
        assert "pod default/trainer claim default/" in await gpu_dra(world, "status")

        faults = world.cluster.node(NODE).kubelet_root / "plugins/gpu.nvidia.com/faults.yaml"
        faults.write_text(f"gpus: {{{device['device']}: {{row_remap: failed}}}}\n")
        await until(lambda: healthy(world) == ["False"])
        faults.write_text("")
        await until(lambda: healthy(world) == ["True"])

        world.store.delete("pods", "trainer", "default")
        await until(lambda: claims(world) == [])
        await until(lambda: not any((faults.parent / "metadata").iterdir()))  # the claim may go before its files


async def _is(found: Any, wanted: Any) -> bool:
    return bool(await found == wanted)
