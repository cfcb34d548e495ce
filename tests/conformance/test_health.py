"""A GPU that fails leaves service, those who use it can see why, and it comes back once it is well again."""

from __future__ import annotations

import asyncio
import sys

import pytest

from tests.conformance import manifests as m
from tests.conformance.case import uuids

pytestmark = [
    pytest.mark.needs("see-node"),  # the suite has started the driver there, with fake GPUs
    pytest.mark.driver(xid_quiet_time="1s"),
]

FAULTS = ("xid=79", "xid=999", "lost", "row-remap=failed", "ecc=1", "temperature=95")


class Faults:
    """Breaks the driver's fake GPUs as a person does: by `gpu-dra fault`."""

    def __init__(self, case) -> None:
        self._case = case
        self._state = str(case.cluster.node._state)

    async def inject(self, *words: str) -> None:
        await self._run("inject", *words)

    async def recover(self, *gpus: str) -> None:
        await self._run("recover", *gpus)

    async def taints(self, gpu, holds) -> dict[str, str]:
        """Return the effects of a GPU's taints, by `key` or `key=value`, as soon as they are as wanted."""

        def look(items):
            found = _taints(items, gpu)
            return found if found is not None and holds(found) else None

        return await self._case.wait.until("ResourceSlice", look, f"the taints of {gpu.name} are as wanted")

    async def out_of_service(self, gpu) -> None:
        """Wait until a GPU has a taint that counts; an API server without taints must not see it at all."""

        def look(items):
            found = _taints(items, gpu)
            return found is None or "NoSchedule" in found.values()

        await self._case.wait.until("ResourceSlice", look, f"{gpu.name} is out of service")

    async def in_service(self, gpu) -> None:
        """Wait until a GPU is offered, and has no taint that counts."""
        await self.taints(gpu, lambda taints: not {*taints.values()} - {"None"})

    async def none_left(self) -> None:
        """Wait until all GPUs are in service again."""
        await self.recover()
        for gpu in self._case.gpus.all:
            await self.in_service(gpu)

    async def _run(self, *words: str) -> None:
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "driver", "fault", *words, "--state-dir", self._state),
            stdout=asyncio.subprocess.DEVNULL,
        )
        assert await process.wait() == 0


@pytest.fixture
async def faults(case):
    """What breaks GPUs; afterwards they are all well."""
    made = Faults(case)
    yield made
    await made.none_left()


async def pod_on(case, gpu, name="pod", **more):
    """Create a pod that wants exactly this GPU."""
    spec = m.devices(m.request("gpu", 1, m.is_gpu(gpu.uuid)))
    await case.create(m.template(f"for-{name}", spec), m.pod(name, [m.from_template(f"for-{name}")], **more))


async def health_of(case, pod, word):
    """Return what the pod's status says about its GPU as soon as it is so; skip where the cluster has no such thing."""

    def look(found):
        entries = [
            one
            for status in found["status"].get("containerStatuses") or ()
            for resource in status.get("allocatedResourcesStatus") or ()
            for one in resource["resources"]
        ]
        return next((one for one in entries if one["health"] == word), None)

    found = await case.wait.one("Pod", pod, look, f"says that its GPU is {word}")
    return look(found)


@pytest.fixture
async def shows_health(case):
    """Skip where pods don't show the health of what they use (ResourceHealthStatus)."""
    await _since_1_36(case, "the health of devices in a pod's status")


@pytest.fixture
async def has_taints(case):
    """Skip where devices have no taints (DRADeviceTaints)."""
    await _since_1_36(case, "a taint of a device")


async def _since_1_36(case, what):
    version = await case.api.get("/version")
    if int(version["minor"].rstrip("+")) < 36:
        pytest.skip(f"before 1.36 {what} is an alpha feature, and off")


async def test_the_pod_that_uses_it_gets_events(case, faults):
    """The first case here: after many faults the driver's Events come slowly, as an API server wants it."""
    gpu = case.gpus.require(1)[0]
    await pod_on(case, gpu)
    await case.running("pod")
    await faults.inject(gpu.name, "lost")
    message = await case.event("GPUUnhealthy", about="pod")
    assert gpu.name in message
    await faults.recover(gpu.name)
    assert "healthy again" in await case.event("GPURecovered", about="pod")


async def test_failing_gpus_keep_new_pods_away_until_they_are_well(case, faults):
    """Each has a fault of its own; as many at once as there are GPUs."""
    gpus = case.gpus.require(1)
    for first in range(0, len(FAULTS), len(gpus)):
        broken = list(zip(gpus, FAULTS[first:], strict=False))
        for gpu, fault in broken:
            await faults.inject(gpu.name, fault)
        for gpu, _ in broken:
            await faults.out_of_service(gpu)
            await pod_on(case, gpu, f"on-{gpu.name}")
        for gpu, fault in broken:
            assert "cannot allocate all claims" in await case.unschedulable(f"on-{gpu.name}"), fault
        await faults.recover()
        for gpu, fault in broken:
            await case.running(f"on-{gpu.name}")
            assert await case.seen(f"on-{gpu.name}") == {gpu.uuid}, fault
        await case.clean_up()


async def test_who_tolerates_the_taint_gets_the_gpu(case, faults, has_taints):
    gpu = case.gpus.require(1)[0]
    await faults.inject(gpu.name, "ecc=1")
    await faults.out_of_service(gpu)
    tolerations = [{"key": "gpu.nvidia.com/ecc-uncorrected", "operator": "Exists"}]
    spec = m.devices(m.request("gpu", 1, m.is_gpu(gpu.uuid), tolerations=tolerations))
    await case.create(m.template("one", spec), m.pod("pod", [m.from_template("one")]))
    await case.running("pod")
    assert await case.seen("pod") == {gpu.uuid}


@pytest.mark.gpus(2)
async def test_other_gpus_stay_in_service(case, faults):
    first, second = case.gpus.require(2)[:2]
    await faults.inject(first.name, "xid=79")
    await faults.out_of_service(first)
    await pod_on(case, second)
    await case.running("pod")
    assert await case.seen("pod") == {second.uuid}


async def test_an_applications_fault_is_told_and_keeps_nobody_away(case, faults, has_taints):
    gpu = case.gpus.require(1)[0]
    await faults.inject(gpu.name, "xid=31")
    xid = "gpu.nvidia.com/xid=31"
    assert (await faults.taints(gpu, lambda taints: xid in taints))[xid] == "None"
    await pod_on(case, gpu)
    await case.running("pod")
    assert await case.seen("pod") == {gpu.uuid}


async def test_a_gpu_without_events_is_not_monitored_and_keeps_nobody_away(case, faults, has_taints):
    gpu = case.gpus.require(1)[0]
    await faults.inject(gpu.name, "not-supported=events")
    unmonitored = "gpu.nvidia.com/unmonitored"
    assert (await faults.taints(gpu, lambda taints: unmonitored in taints))[unmonitored] == "None"
    await pod_on(case, gpu)
    await case.running("pod")


async def test_the_pod_that_uses_it_shows_why_and_when_it_is_well_again(case, faults, shows_health):
    gpu = case.gpus.require(1)[0]
    await pod_on(case, gpu)
    await case.running("pod")
    await health_of(case, "pod", "Healthy")
    await faults.inject(gpu.name, "xid=48")
    entry = await health_of(case, "pod", "Unhealthy")
    assert "XID 48" in entry["message"]
    assert gpu.name in entry["resourceID"]
    await faults.recover(gpu.name)
    await health_of(case, "pod", "Healthy")
    await case.running("pod")  # the pod has lived through it


@pytest.mark.needs("restart-driver")
async def test_when_the_driver_stops_health_is_unknown_and_it_comes_back(case, faults, shows_health):
    gpu = case.gpus.require(1)[0]
    await pod_on(case, gpu)
    await case.running("pod")
    await health_of(case, "pod", "Healthy")
    await case.cluster.stop_driver()
    await health_of(case, "pod", "Unknown")
    await case.cluster.start_driver()
    await health_of(case, "pod", "Healthy")


@pytest.mark.gpus(2)
@pytest.mark.needs("restart-driver")
async def test_a_serious_xid_outlives_the_driver(case, faults, has_taints):
    gpu = case.gpus.require(1)[0]
    other = case.gpus.require(2)[1]
    await faults.inject(gpu.name, "xid=79")
    await faults.taints(gpu, lambda taints: "gpu.nvidia.com/reset-required" in taints)
    await case.cluster.stop_driver()
    await faults.inject(gpu.name, "ecc=1")  # the XID is not reported again to another process
    await case.cluster.start_driver()
    await faults.inject(other.name, "ecc=1")
    await faults.taints(other, bool)  # it has looked at its GPUs
    assert "gpu.nvidia.com/xid=79" in await faults.taints(gpu, bool)
    await pod_on(case, gpu)
    assert "cannot allocate all claims" in await case.unschedulable("pod")
    await faults.recover(gpu.name)
    await case.running("pod")


async def test_pods_end_while_nvml_is_down_and_start_when_it_is_back(case, faults):
    gpu = case.gpus.require(1)[0]
    await pod_on(case, gpu, "first")
    await case.running("first")
    claim = await case.claim_of("first")
    await faults.inject("nvml-down")
    for one in case.gpus.all:
        await faults.out_of_service(one)
    await case.delete("Pod", "first")
    await case.unprepared(claim)
    await pod_on(case, gpu, "second")
    await case.unschedulable("second")
    await faults.recover()
    await case.running("second")


@pytest.mark.driver(unhealthy_effect="NoExecute")
async def test_serious_faults_evict_if_that_was_asked_for(case, faults, has_taints):
    gpu = case.gpus.require(1)[0]
    await pod_on(case, gpu)
    await case.running("pod")
    claim = await case.claim_of("pod")
    assert uuids(await case.given("pod")) == {gpu.uuid}
    await faults.inject(gpu.name, "xid=79")
    await case.wait.gone("Pod", "pod")
    await case.unprepared(claim)


def _taints(items, gpu):
    """Return a GPU's taints; None while it is not offered."""
    for item in items:
        for device in item["spec"].get("devices") or ():
            if device["name"] == gpu.name and item["spec"]["pool"]["name"] == gpu.pool:
                return {
                    one["key"] + (f"={one['value']}" if one.get("value") else ""): one["effect"]
                    for one in device.get("taints") or ()
                }
    return None
