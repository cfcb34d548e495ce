"""Claims that change GPUs and can't be prepared, through the agent's socket: the message, and the GPU as it was.

The GPUs are fake, the tools are the fake programs, run as the driver's would be.
"""

from __future__ import annotations

import json
import os
import secrets
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from driver.inventory.fake import FakeInventory
from driver.inventory.faults import Faults, GpuFaults, MigFaults, save_faults
from driver.kube.client import KubeClient
from driver.localcluster.apiserver import ApiServer
from driver.model.mig import Placement
from tests.agent_process import NODE, Node, agent
from tests.fakes.install import FakeDriver
from tests.waiting import until

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

API = "resource.nvidia.com/v1beta1"
PART = "gpu-0-mig-1g10gb-19-0"
LONG = {"strategy": "TimeSlicing", "timeSlicingConfig": {"interval": "Long"}}
ROOT = pytest.mark.skipif(os.geteuid() != 0, reason="an MPS daemon's own /dev/shm takes root's rights")


def gpu_config(sharing: Any, kind: str = "GpuConfig", **more: Any) -> dict[str, Any]:
    return {"apiVersion": API, "kind": kind, "sharing": sharing, **more}


def mps(**settings: Any) -> dict[str, Any]:
    return {"strategy": "MPS", "mpsConfig": settings}


class World:
    """A node with fake GPUs and the fake tools, and what they have been told."""

    def __init__(self, node: Node, driver: FakeDriver) -> None:
        self.node, self.driver = node, driver
        self.shm = Path(f"/dev/shm/gpu-dra-test-{secrets.token_hex(4)}")
        self._number = 0

    def settings(self, **changes: str) -> dict[str, str]:
        return {
            "gpus": "h100:2",
            "dynamic_mig": "0",
            "nvidia_smi": str(self.driver.bin / "nvidia-smi"),
            "mps_control": str(self.driver.bin / "nvidia-cuda-mps-control"),
            "mps_shm_dir": str(self.shm),
            "tool_timeout": "2s",
            "mps_ready_timeout": "500ms",
            **changes,
        }

    async def refused(self, *devices: str, config: Any = None, timeout: float = 2.5) -> str:
        """Prepare a claim; return the error, once it is sure that nothing is left of it."""
        before = await self.picture()
        self._number += 1
        claim = await self.node.claim(f"claim-{self._number}", *devices, config=[config] if config else [])
        error = str((await self.node.prepare(claim, timeout=timeout))[claim.uid].error)
        assert error
        await until(lambda: self.is_as(before))  # the call's deadline may cut short what then undoes itself
        assert await self.node.unprepare(claim) == {claim.uid: ""}
        assert await self.picture() == before
        return error

    async def is_as(self, before: object) -> bool:
        return await self.picture() == before

    async def works(self, *devices: str, config: Any = None) -> None:
        """Prepare a claim and release it."""
        self._number += 1
        claim = await self.node.claim(f"claim-{self._number}", *devices, config=[config] if config else [])
        assert (await self.node.prepare(claim))[claim.uid].error == ""
        assert await self.node.unprepare(claim) == {claim.uid: ""}

    async def picture(self) -> object:
        """All that a claim may change: MIG, modes and slices, files."""
        mig = [(gpu.mig.enabled, gpu.mig.instances, gpu.mig.bare) for gpu in (await self.gpus()) if gpu.mig is not None]
        file = self.driver.state / "gpus.json"
        values = json.loads(file.read_text()) if file.exists() else {}
        settings = {uuid: value for uuid, value in values.items() if value != {"slice": 0, "mode": "DEFAULT"}}
        state = self.node.service.parent
        found = [*(state / "claims").rglob("*.json"), *(state / "mps").glob("*"), *self.node.cdi.glob("*claim*")]
        return mig, settings, sorted(str(path) for path in found)

    async def gpus(self) -> Any:
        return (await self.inventory().read()).gpus

    def inventory(self) -> FakeInventory:
        """The same GPUs, as somebody else on the node sees and changes them."""
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        file = self.node.faults.with_name("fake-mig.json")
        return FakeInventory.from_spec("h100:2", node_name=NODE, mig_file=file, boot_id=boot)


@pytest.fixture
async def world(short_tmp: Path) -> AsyncIterator[World]:
    api = ApiServer(short_tmp / "api")
    await api.start()
    async with KubeClient.from_kubeconfig(api.kubeconfig) as client:
        await client.create("/api/v1/nodes", {"apiVersion": "v1", "kind": "Node", "metadata": {"name": NODE}})
        node = Node(short_tmp, api, client)
        (node.kubelet_root / "plugins_registry").mkdir(parents=True)
        node.faults.parent.mkdir()
        world = World(node, FakeDriver(short_tmp / "driver"))
        yield world
    await api.stop()
    shutil.rmtree(world.shm, ignore_errors=True)


PARAMETERS = {
    "kind": (gpu_config(LONG, kind="VfioDeviceConfig"), "kind: invalid value 'VfioDeviceConfig'"),
    "version": (gpu_config(LONG) | {"apiVersion": "resource.nvidia.com/v1"}, f"must be {API}"),
    "field": (gpu_config(LONG, extra=1), "extra: invalid value 1: unknown field"),
    "enum": (gpu_config({"strategy": "Share"}), "sharing.strategy"),
    "quantity": (gpu_config(mps(defaultPinnedDeviceMemoryLimit="1023Ki")), "at least 1Mi"),
    "percentage": (gpu_config(mps(defaultActiveThreadPercentage=101)), "from 0 to 100"),
    "mps-with-time-slicing": (gpu_config(LONG | {"mpsConfig": {}}), "only allowed with strategy MPS"),
    "no-mapping": (gpu_config([]), "sharing"),
}


async def test_bad_parameters_name_their_field(world: World) -> None:
    async with agent(world.node, **world.settings()):
        await until(world.node.service.exists)
        for name, (config, message) in PARAMETERS.items():
            error = await world.refused("gpu-1", config=config)
            assert message in error, name
            assert "opaque.parameters" in error, name
        assert world.driver.calls() == []
        await world.works("gpu-1", config=gpu_config(LONG))


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"status": 9, "say": "NVIDIA-SMI has failed"}, "exit status 9: NVIDIA-SMI has failed"),
        ({"hang": True}, "nvidia-smi did not end within 0.5 s and was killed"),
    ],
)
async def test_an_nvidia_smi_that_fails_or_hangs(world: World, wrong: dict[str, Any], message: str) -> None:
    async with agent(world.node, **world.settings(tool_timeout="500ms")):
        await until(world.node.service.exists)
        world.driver.control(nvidia_smi=wrong)
        assert message in await world.refused("gpu-1", config=gpu_config(LONG))
        world.driver.control()
        await world.works("gpu-1", config=gpu_config(LONG))


async def test_an_nvidia_smi_that_is_missing_may_come(world: World) -> None:
    async with agent(world.node, **world.settings()):
        await until(world.node.service.exists)
        world.driver.uninstall()
        assert "no nvidia-smi at" in await world.refused("gpu-1", config=gpu_config(LONG))
        FakeDriver(world.driver.root)
        await world.works("gpu-1", config=gpu_config(LONG))


async def test_a_gpu_that_has_no_time_slice(world: World) -> None:
    async with agent(world.node, **world.settings()):
        await until(world.node.service.exists)
        uuid = (await world.gpus())[1].uuid
        world.driver.control(nvidia_smi={"unsupported": [uuid]})
        assert "not supported" in await world.refused("gpu-1", config=gpu_config(LONG))


@ROOT
@pytest.mark.parametrize("start", ["fail", "mute"])
async def test_a_daemon_that_does_not_come_up(world: World, start: str) -> None:
    async with agent(world.node, **world.settings()):
        await until(world.node.service.exists)
        world.driver.control(mps={"start": start})
        assert "MPS control daemon" in await world.refused("gpu-1", config=gpu_config(mps()))
        world.driver.control()
        await world.works("gpu-1", config=gpu_config(mps()))


async def test_a_state_directory_too_deep_for_sockets(world: World) -> None:
    """Nothing could be started, so there is nothing to undo, and the pod can go."""
    deep = world.node.root / ("d" * 60)
    async with agent(world.node, **world.settings(state_dir=str(deep))):
        await until(world.node.service.exists)
        error = await world.refused("gpu-1", config=gpu_config(mps()))
        assert "use a shorter state_dir" in error
        assert [*(deep / "claims").glob("*.json")] == []


@ROOT
async def test_a_limit_that_the_daemon_refuses(world: World) -> None:
    async with agent(world.node, **world.settings()):
        await until(world.node.service.exists)
        world.driver.control(mps={"refuse": True})
        config = gpu_config(mps(defaultPinnedDeviceMemoryLimit="1Gi"))
        assert "refused its limits" in await world.refused("gpu-1", config=config)


async def test_a_placement_that_somebody_else_has_taken(world: World) -> None:
    async with agent(world.node, **world.settings()):
        await until(world.node.service.exists)
        others = world.inventory()
        uuid = (await world.gpus())[0].uuid
        await others.set_mig_mode(uuid, True)
        theirs = await others.create_mig(uuid, 19, Placement(0, 1))
        assert theirs.uuid in await world.refused(PART)
        await others.destroy_mig(uuid, Placement(0, 1))
        await world.works(PART)


@pytest.mark.parametrize("step", ["mode", "create_gi", "create_ci"])
async def test_a_gpu_that_can_not_be_changed(world: World, step: str) -> None:
    fault = "in-use" if step == "mode" else "fail"
    async with agent(world.node, **world.settings()):
        await until(world.node.service.exists)
        uuid = (await world.gpus())[0].uuid
        save_faults(world.node.faults, Faults(gpus={uuid: GpuFaults(mig=MigFaults(**{step: fault}))}))
        error = await world.refused(PART)
        assert uuid in error
        assert ("processes use it" in error) == (step == "mode")
        save_faults(world.node.faults, Faults())
        await world.works(PART)


async def test_a_mig_config_that_names_no_request_is_not_for_whole_gpus(world: World) -> None:
    """One that names a request with a whole GPU is refused: see the conformance suite."""
    async with agent(world.node, **world.settings()):
        await until(world.node.service.exists)
        await world.works("gpu-1", config=gpu_config(mps(), kind="MigDeviceConfig"))
        assert world.driver.calls() == []


async def test_two_claims_that_want_different_settings_of_one_gpu(world: World) -> None:
    async with agent(world.node, **world.settings(shares="2")):
        await until(world.node.service.exists)
        first = await _share(world, "first", "a", gpu_config(LONG))
        assert (await world.node.prepare(first))[first.uid].error == ""
        before = await world.picture()
        second = await _share(world, "second", "b", gpu_config(mps()))
        assert "give both the same parameters" in (await world.node.prepare(second))[second.uid].error
        assert await world.picture() == before
        assert await world.node.unprepare(first, second) == {first.uid: "", second.uid: ""}


async def _share(world: World, name: str, digit: str, config: dict[str, Any]) -> Any:
    spec = {"devices": {"requests": [{"name": "gpu", "exactly": {"deviceClassName": "gpu.nvidia.com"}}]}}
    result = {"request": "gpu", "driver": "gpu.nvidia.com", "pool": NODE, "device": "gpu-1"}
    share = {"shareID": f"b98a178b-5be9-4ea2-99fc-1977135f03c{digit}", "consumedCapacity": {"shares": "1"}}
    opaque = {"source": "FromClaim", "opaque": {"driver": "gpu.nvidia.com", "parameters": config}}
    return await world.node.allocated(name, spec, {"devices": {"results": [{**result, **share}], "config": [opaque]}})
