"""Pods that ask for extended resources, served by claims where DeviceClasses back these."""

from __future__ import annotations

import asyncio
import sys
from typing import TYPE_CHECKING, Any

import pytest
import yaml

from driver.device_classes import device_classes
from tests.localcluster.world import GPU, World
from tests.waiting import until

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

MIG = "nvidia.com/mig-1g.10gb"
HOLD = "nvidia-smi -L; sleep 600"


@pytest.fixture
async def world(short_tmp: Path) -> AsyncIterator[World]:
    made = World(short_tmp)
    async with made.cluster:
        yield made


def install(world: World, items: list[dict[str, Any]]) -> None:
    for item in items:
        world.store.create("deviceclasses", item)


def claims(world: World) -> list[str]:
    return [item["metadata"]["name"] for item in world.store.list("resourceclaims")]


async def test_where_a_class_backs_them_gpus_are_dras_and_not_advertised(world: World) -> None:
    install(world, device_classes([]))
    async with world.agent("--device-plugin", "on"):
        await until(lambda: len(world.dra()) == 4)
        world.pod("two", {GPU: "2"}, HOLD)
        await until(lambda: len(world.gpus_of("two")) == 2)
        assert len(claims(world)) == 1
        assert world.counts() in (("-", "-"), ("0", "0"))


async def test_a_rule_about_owners_goes_before_classes(world: World) -> None:
    install(world, device_classes([]))
    async with world.agent("--ownership", "device-plugin"):
        await until(lambda: world.counts() == ("4", "4"))
        world.pod("two", {GPU: "2"}, HOLD)
        await until(lambda: len(world.gpus_of("two")) == 2)
        assert claims(world) == []
        assert world.dra() == []


async def test_a_new_class_moves_gpus_as_they_become_free(world: World) -> None:
    async with world.agent("--device-plugin", "on"):
        await until(lambda: world.counts() == ("4", "4"))
        world.pod("old", {GPU: "1"}, HOLD, terminationGracePeriodSeconds=0)
        await until(lambda: world.gpus_of("old"))
        install(world, device_classes([]))
        await until(lambda: len(world.dra()) == 3)
        world.pod("new", {GPU: "3"}, HOLD, terminationGracePeriodSeconds=0)
        await until(lambda: len(world.gpus_of("new")) == 3)
        assert not world.gpus_of("new") & world.gpus_of("old")
        world.store.delete("pods", "old", "default")
        await until(lambda: len(world.dra()) == 4)


async def test_and_a_class_that_goes_moves_them_back(world: World) -> None:
    install(world, device_classes([]))
    async with world.agent("--device-plugin", "on"):
        await until(lambda: len(world.dra()) == 4)
        world.store.delete("deviceclasses", "gpu.nvidia.com")
        await until(lambda: world.counts() == ("4", "4"))
        assert world.dra() == []


async def test_a_restart_leaves_them_where_they_are(world: World) -> None:
    install(world, device_classes([]))
    async with world.agent("--device-plugin", "on"):
        await until(lambda: len(world.dra()) == 4)
    async with world.agent("--device-plugin", "on"):
        world.pod("pod", {GPU: "1"})
        await until(lambda: world.phase("pod") == "Succeeded")
    assert "GPUOwnershipWaiting" not in world.events()
    assert "is offered through device-plugin" not in (world.root / "agent.log").read_text()


async def test_what_the_config_shares_stays_with_the_device_plugin(world: World) -> None:
    install(world, device_classes([]))
    resources = "{timeSlicing: {resources: [{name: nvidia.com/gpu, replicas: 2}]}}"
    world.config.write_text(f"version: v1\nsharing: {resources}\n")
    async with world.agent("--device-plugin-config", str(world.config)):
        await until(lambda: world.counts() == ("8", "8"))
    assert claims(world) == []


async def test_mig_resources_by_the_classes_that_the_command_shows(world: World) -> None:
    gpus = "h100@mig=1g.10gb*3,h100"
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "driver", "device-classes", "--gpus", gpus, "-o", "yaml", stdout=asyncio.subprocess.PIPE
    )
    out, _ = await process.communicate()
    install(world, list(yaml.safe_load_all(out)))
    async with world.agent(gpus=gpus):
        world.pod("slices", {MIG: "2"}, HOLD)
        world.pod("whole", {GPU: "1"}, HOLD)
        await until(lambda: len([line for line in world.log("slices") if "MIG-" in line]) == 2)
        await until(lambda: len(world.gpus_of("whole")) == 1)
    assert len(claims(world)) == 2
