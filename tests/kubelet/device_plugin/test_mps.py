from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from driver.errors import GpuToolError
from driver.kubelet.device_plugin.mps import HOLDER, MpsReplicas
from driver.kubelet.device_plugin.plugins import DevicePlugins, PluginPaths
from driver.sharing.fake import FakeComputeModes, FakeMps, FakeState
from tests.kubelet.device_plugin.support import GPU, Kubelet, Plugins
from tests.unit.deviceplugin.helpers import config, shared, snapshot
from tests.waiting import until

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Mapping
    from pathlib import Path

    from driver.sharing.base import MpsSpec

NODE = snapshot("h100:2")
FIRST, SECOND = (gpu.uuid for gpu in NODE.gpus)


class Daemons(FakeMps):
    """Fake daemons that fail as a test says."""

    fails = ""

    async def start(self, daemon_id: str, spec: MpsSpec) -> None:
        if self.fails:
            raise GpuToolError(self.fails)
        await super().start(daemon_id, spec)


class Mps:
    """MPS on a node."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.state = FakeState(root / "fake.json", "boot")
        self.daemons = Daemons(root / "mps", self.state)
        self.modes = FakeComputeModes(self.state)
        self.pods: dict[str, tuple[str, ...]] | None = {}
        self.replicas = self.make()

    def make(self) -> MpsReplicas:
        async def pods() -> Mapping[str, tuple[str, ...]] | None:
            return self.pods

        return MpsReplicas(self.daemons, self.modes, self.root / "plugin-mps.json", pods)


@pytest.fixture
def mps(short_tmp: Path) -> Mps:
    return Mps(short_tmp)


@pytest.fixture
async def plugins(short_tmp: Path, kubelet: Kubelet, mps: Mps) -> AsyncIterator[Plugins]:
    made = Plugins(short_tmp)
    paths = PluginPaths(directory=made.directory)
    made.plugins = DevicePlugins(paths, made.files, made.heard, made.heard, mps.replicas)
    async with made.running():
        made.plugins.configure(config(shared(4, kind="mps")))
        made.plugins.publish(NODE)
        await until(lambda: GPU in made.heard.offered and kubelet.counts() == (8, made.heard.offered[GPU][0]))
        yield made


async def test_a_replica_reaches_the_daemon_of_its_gpu_with_its_part(plugins: Plugins, mps: Mps) -> None:
    (answer,) = await plugins.allocate([f"{FIRST}::2"])
    assert dict(answer.envs) == {"CUDA_MPS_PIPE_DIRECTORY": "/tmp/nvidia-mps"}
    assert {mount.container_path: mount.host_path for mount in answer.mounts} == {
        "/tmp/nvidia-mps": str(mps.root / f"mps/plugin-{FIRST}/pipe"),
        "/dev/shm": str(mps.root / f"mps/plugin-{FIRST}/shm"),
    }
    spec = mps.state.get("mps", f"plugin-{FIRST}")
    assert spec["activeThreadPercentage"] == 25
    assert spec["memoryLimits"] == {FIRST: (NODE.gpus[0].memory or 0) // 4}
    assert await mps.modes.get(FIRST) == "EXCLUSIVE_PROCESS"
    assert mps.replicas.daemons() == {f"plugin-{FIRST}", f"plugin-{SECOND}"}


async def test_several_replicas_are_refused(plugins: Plugins) -> None:
    assert (await plugins.refused([f"{FIRST}::0", f"{SECOND}::0"]))[0] == "INVALID_ARGUMENT"


async def test_M8_what_was_is_restored_once_the_clients_are_gone(plugins: Plugins, mps: Mps, monkeypatch) -> None:
    monkeypatch.setattr("driver.kubelet.device_plugin.plugins._DAEMONS_AGAIN", 0.01)
    mps.pods = {FIRST: ("ns/p",)}
    plugins.plugins.configure(config())
    await until(lambda: mps.replicas.held() == {FIRST})
    assert await mps.modes.get(SECOND) == "DEFAULT"
    assert mps.daemons.running() == {f"plugin-{FIRST}"}
    mps.pods = {}
    await until(lambda: not mps.replicas.held())
    assert await mps.modes.get(FIRST) == "DEFAULT"
    assert not mps.daemons.running()
    assert not (mps.root / "plugin-mps.json").exists()


async def test_a_daemon_that_dies_is_started_again(plugins: Plugins, mps: Mps) -> None:
    mps.daemons.on_death = lambda daemon, message: plugins.plugins.look_again()
    mps.daemons.die(f"plugin-{FIRST}")
    await until(lambda: f"plugin-{FIRST}" in mps.daemons.running())


async def test_without_its_daemon_a_gpus_replicas_are_unhealthy(plugins: Plugins, mps: Mps, monkeypatch) -> None:
    monkeypatch.setattr("driver.kubelet.device_plugin.plugins._DAEMONS_AGAIN", 0.01)
    mps.daemons.on_death = lambda daemon, message: plugins.plugins.look_again()
    mps.daemons.fails = "nvidia-cuda-mps-control ended with status 1"
    mps.daemons.die(f"plugin-{FIRST}")
    await until(lambda: plugins.heard.offered[GPU] == (4, 4))
    code, message = await plugins.refused([f"{FIRST}::0"])
    assert code == "FAILED_PRECONDITION"
    assert "MPS can't be started: nvidia-cuda-mps-control ended with status 1" in message
    await plugins.allocate([f"{SECOND}::0"])
    mps.daemons.fails = ""
    await until(lambda: plugins.heard.offered[GPU] == (8, 0))


async def test_another_share_waits_for_the_clients_of_the_old_one(mps: Mps) -> None:
    from driver.sharing.base import MpsSpec

    old, new = MpsSpec(devices=(FIRST,)), MpsSpec(devices=(FIRST,), active_thread_percentage=10)
    assert not await mps.replicas.keep({FIRST: old})
    mps.pods = {FIRST: ("ns/p",)}
    assert await mps.replicas.keep({FIRST: new})
    assert mps.state.get("mps", f"plugin-{FIRST}") == old.encode()
    mps.pods = {}
    assert not await mps.replicas.keep({FIRST: new})
    assert mps.state.get("mps", f"plugin-{FIRST}") == new.encode()


async def test_another_agent_restores_what_the_first_found(mps: Mps) -> None:
    from driver.sharing.base import MpsSpec

    await mps.modes.set(FIRST, "PROHIBITED")
    await mps.replicas.keep({FIRST: MpsSpec(devices=(FIRST,))})
    second = mps.make()
    assert second.held() == {FIRST}
    mps.pods = None  # the kubelet can't tell
    assert await second.keep({})
    mps.pods = {}
    assert not await second.keep({})
    assert await mps.modes.get(FIRST) == "PROHIBITED"


def test_the_holder_has_a_name_for_people() -> None:
    assert "MPS" in HOLDER
    assert "/" not in HOLDER


def test_an_unreadable_file_costs_the_modes_only(mps: Mps) -> None:
    (mps.root / "plugin-mps.json").write_text("{")
    assert mps.make().held() == frozenset()
