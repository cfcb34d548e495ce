"""How pods share a GPU, as their parameters and capacity requests say: time slices, MPS, shares; what is refused."""

from __future__ import annotations

import pytest

from tests.conformance import manifests as m
from tests.conformance.case import results, uuids
from tests.conformance.cluster import REGISTERED

API = "resource.nvidia.com/v1beta1"
ENVIRONMENT = m.script(m.SHOW, "env | grep -e GPU_DRA_MEMORY -e CUDA_MPS", "grep -e mps -e shm /proc/mounts || true")
SHARED_BY_MEMORY = pytest.mark.driver(gpus="h100,l4", shares="memory")
H100 = f"{m.attribute('productName')}.matches('H100')"


def gpu_config(sharing, *requests, kind="GpuConfig"):
    """Return a claim's or a class's parameters."""
    return m.parameters({"apiVersion": API, "kind": kind, "sharing": sharing}, *requests)


def slicing(interval):
    return {"strategy": "TimeSlicing", "timeSlicingConfig": {"interval": interval}}


def mps(**settings):
    return {"strategy": "MPS", "mpsConfig": settings}


def share(memory, name="gpu"):
    """Return a request for some memory of a GPU."""
    return m.request(name, 1, H100, capacity={"requests": {"memory": memory}})


async def create(case, name, *requests, config=()):
    """Create a pod with a claim of its own that shows its environment."""
    main = m.container("main", "gpu", command=ENVIRONMENT)
    await case.create(m.template(name, m.devices(*requests, config=config)), m.pod(name, [m.from_template(name)], main))


async def refusal(case, pod="pod"):
    """Return why a pod's claim is not prepared."""
    return await case.event("FailedPrepareDynamicResources", about=pod)


async def settings_of(case, pod, kind):
    """Return what is set on a pod's GPUs."""
    found = case.cluster.node.sharing(kind)
    return [found.get(gpu.uuid) for gpu in await case.given(pod)]


async def told_devices(case, claim):
    """Return what the driver tells of a claim's devices in its status."""

    def devices(found):
        return found["status"].get("devices")

    return devices(await case.wait.one("ResourceClaim", claim["metadata"]["name"], devices, "tells of its devices"))


# --- time-slicing ----------------------------------------------------------------------------------------------------


@pytest.mark.driver(gpus="h100:2")
async def test_a_pod_with_a_time_slice_runs(case):
    await create(case, "pod", config=(gpu_config(slicing("Long")),))
    await case.running("pod")
    assert await case.seen("pod") == uuids(await case.given("pod"))


@pytest.mark.driver(gpus="h100:2")
@pytest.mark.needs("see-node")
async def test_a_time_slice_is_set_while_the_pod_lives(case):
    await create(case, "pod", config=(gpu_config(slicing("Long")),))
    await case.running("pod")
    assert await settings_of(case, "pod", "timeSlice") == [3]
    await case.gone("pod")
    assert case.cluster.node.sharing("timeSlice") == {}


@pytest.mark.driver(gpus="h100:2")
@pytest.mark.needs("see-node")
@pytest.mark.parametrize(("claims", "level"), [((), 1), ((gpu_config(slicing("Medium")),), 2)], ids=["class", "claim"])
async def test_parameters_of_the_class_hold_unless_the_claim_has_some(case, claims, level):
    gpu = f"{m.attribute('type')} == 'gpu'"
    async with case.device_class("short", gpu, config=[{"opaque": gpu_config(slicing("Short"))["opaque"]}]) as short:
        await create(case, "pod", m.request("gpu", class_=short), config=claims)
        await case.running("pod")
        assert await settings_of(case, "pod", "timeSlice") == [level]
        await case.gone("pod")


@pytest.mark.driver(gpus="h100:2")
async def test_parameters_reach_the_requests_that_they_name(case):
    spec = m.devices(m.request("plain"), m.request("shared"), config=(gpu_config(mps(), "shared"),))
    containers = [m.container(name, f"gpu/{name}", command=ENVIRONMENT) for name in ("plain", "shared")]
    await case.create(m.template("two", spec), m.pod("pod", [m.from_template("two")], *containers))
    await case.running("pod")
    assert "CUDA_MPS_PIPE_DIRECTORY" in await case.output("pod", "shared")
    assert "CUDA_MPS" not in await case.output("pod", "plain")
    for name in ("plain", "shared"):
        assert await case.seen("pod", name) == uuids(await case.given("pod", request=name))


# --- MPS -------------------------------------------------------------------------------------------------------------


@pytest.mark.driver(gpus="h100:2")
@pytest.mark.needs("mounts")
async def test_mps_gives_the_container_its_daemon(case):
    await create(case, "pod", m.request("gpu", 2), config=(gpu_config(mps(defaultActiveThreadPercentage=50)),))
    await case.running("pod")
    shown = await case.output("pod")
    assert "CUDA_MPS_PIPE_DIRECTORY=/tmp/nvidia-mps" in shown
    assert " /tmp/nvidia-mps " in shown
    assert " /dev/shm " in shown
    assert await case.seen("pod") == uuids(await case.given("pod"))
    if case.cluster.can("see-node"):
        assert await settings_of(case, "pod", "computeMode") == ["EXCLUSIVE_PROCESS"] * 2
        assert len(case.cluster.node.sharing("mps")) == 1
    await case.gone("pod")
    if case.cluster.can("see-node"):
        assert case.cluster.node.sharing("mps") == case.cluster.node.sharing("computeMode") == {}


@pytest.mark.driver(gpus="h100:2")
@pytest.mark.needs("see-node", "restart-driver")
async def test_a_killed_driver_finds_its_mps_daemons_again(case):
    await create(case, "pod", config=(gpu_config(mps()),))
    await case.running("pod")
    await case.cluster.kill_driver()
    await case.cluster.start_driver()
    await case.cluster.driver_says(REGISTERED)
    await case.gone("pod")
    assert case.cluster.node.sharing("mps") == case.cluster.node.sharing("computeMode") == {}


@pytest.mark.driver(gpus="h100", dynamic_mig="all")
@pytest.mark.needs("see-node")
async def test_a_partition_under_mps(case):
    config = gpu_config(mps(defaultPinnedDeviceMemoryLimit="2Gi"), kind="MigDeviceConfig")
    await create(case, "pod", m.request("gpu", class_="mig.nvidia.com"), config=(config,))
    await case.running("pod")
    assert "CUDA_MPS_PIPE_DIRECTORY=/tmp/nvidia-mps" in await case.output("pod")
    ((_, daemon),) = case.cluster.node.sharing("mps").items()
    made = case.cluster.node.mig_devices()
    assert daemon["devices"] == list(made)
    assert daemon["memoryLimits"] == dict.fromkeys(made, 2 << 30)
    await case.gone("pod")
    assert (case.cluster.node.sharing("mps"), case.cluster.node.mig_devices()) == ({}, set())


# --- shares ----------------------------------------------------------------------------------------------------------


@SHARED_BY_MEMORY
async def test_pods_share_a_gpu_by_memory_and_are_told_their_limits(case):
    await create(case, "small", share("20Gi"))
    await create(case, "large", share("40Gi"))
    await case.running("small", "large")
    assert await case.seen("small") == await case.seen("large") == uuids(await case.given("small"))
    assert "GPU_DRA_MEMORY_LIMIT_0=20480M" in await case.output("small")
    assert "GPU_DRA_MEMORY_LIMIT_0=40960M" in await case.output("large")
    ids = [one["shareID"] for pod in ("small", "large") for one in results(await case.claim_of(pod))]
    assert len(set(ids)) == 2


@SHARED_BY_MEMORY
async def test_two_shares_of_one_gpu_in_one_pod_have_an_id_each(case):
    """The kubelet asks for both claims in one call."""
    sizes = {"small": "20Gi", "large": "40Gi"}
    await case.create(*(m.template(name, m.devices(share(memory))) for name, memory in sizes.items()))
    containers = [m.container(name, name, command=ENVIRONMENT) for name in sizes]
    await case.create(m.pod("pod", [m.from_template(name, name) for name in sizes], *containers))
    await case.running("pod")
    assert "GPU_DRA_MEMORY_LIMIT_0=20480M" in await case.output("pod", "small")
    assert "GPU_DRA_MEMORY_LIMIT_0=40960M" in await case.output("pod", "large")
    assert await case.seen("pod", "small") == await case.seen("pod", "large")
    claims = [await case.claim_of("pod", name) for name in sizes]
    ids = {one["shareID"] for claim in claims for one in results(claim)}
    assert len(ids) == len(uuids(await case.given("pod", "small") + await case.given("pod", "large"))) * 2 == 2
    assert ids == {one["shareID"] for claim in claims for one in await told_devices(case, claim)}


@SHARED_BY_MEMORY
async def test_a_share_that_does_not_fit_waits(case):
    await create(case, "first", share("50Gi"))
    await case.running("first")
    await create(case, "second", share("40Gi"))
    assert "cannot allocate all claims" in await case.unschedulable("second")
    await case.gone("first")
    await case.running("second")


@SHARED_BY_MEMORY
async def test_a_claim_that_asks_for_no_memory_gets_all_of_it(case):
    await create(case, "all", m.request("gpu", 1, H100))
    await case.running("all")
    await create(case, "more", share("1Gi"))
    assert "cannot allocate all claims" in await case.unschedulable("more")


@SHARED_BY_MEMORY
async def test_shares_under_mps_have_their_limits_enforced(case):
    config = (gpu_config(mps(defaultActiveThreadPercentage=30)),)
    for name, memory in (("small", "20Gi"), ("large", "40Gi")):
        await create(case, name, share(memory), config=config)
    await case.running("small", "large")
    small = await case.output("small")
    assert "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT=0=20480M" in small
    assert "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE=30" in small
    assert "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT=0=40960M" in await case.output("large")
    if case.cluster.can("see-node"):
        assert len(case.cluster.node.sharing("mps")) == 1
        await case.gone("small")
        assert len(case.cluster.node.sharing("mps")) == 1
        await case.gone("large")
        assert case.cluster.node.sharing("mps") == {}


@SHARED_BY_MEMORY
async def test_shares_that_want_different_settings_of_one_gpu_are_refused(case):
    await create(case, "first", share("20Gi"), config=(gpu_config(slicing("Long")),))
    await case.running("first")
    await create(case, "pod", share("20Gi"), config=(gpu_config(slicing("Short")),))
    assert "give both the same parameters" in await refusal(case)
    assert (await case.running("first"))[0]["status"]["phase"] == "Running"
    await case.gone("first")
    await case.running("pod")


@pytest.mark.driver(gpus="h100", shares="2")
async def test_as_many_pods_as_there_are_shares(case):
    for name in ("a", "b"):
        await create(case, name)
    await case.running("a", "b")
    assert await case.seen("a") == await case.seen("b")
    await create(case, "c")
    assert "cannot allocate all claims" in await case.unschedulable("c")


@pytest.mark.driver(gpus="h100", shares="unlimited")
async def test_any_number_of_pods_may_share_without_a_limit(case):
    names = [f"pod-{number}" for number in range(4)]
    for name in names:
        await create(case, name)
    await case.running(*names)
    assert len(set.union(*[await case.seen(name) for name in names])) == 1


@pytest.mark.driver(gpus="h100", shares="2", dynamic_mig="all")
async def test_pods_share_a_partition(case):
    for name in ("a", "b"):
        await create(case, name, m.request("gpu", class_="mig.nvidia.com"))
    await case.running("a", "b")
    devices = [one["device"] for pod in ("a", "b") for one in results(await case.claim_of(pod))]
    assert len(set(devices)) == 1
    if case.cluster.can("see-node"):
        assert len(case.cluster.node.mig_devices()) == 1
        await case.gone("a")
        assert len(case.cluster.node.mig_devices()) == 1
        await case.gone("b")
        assert case.cluster.node.mig_devices() == set()


# --- what is refused, and told ---------------------------------------------------------------------------------------

REFUSED = {
    "mps with time slices": (
        gpu_config({"strategy": "MPS", "timeSlicingConfig": {"interval": "Long"}}),
        "sharing.timeSlicingConfig",
    ),
    "time slices with mps": (gpu_config({"strategy": "TimeSlicing", "mpsConfig": {}}), "sharing.mpsConfig"),
    "an unknown interval": (gpu_config(slicing("Eternal")), "timeSlicingConfig.interval"),
    "an unknown field": (gpu_config({"strategy": "MPS", "mpsConfig": {"threads": 5}}), "mpsConfig.threads"),
    "an unknown kind": (gpu_config(mps(), kind="VfioConfig"), ".kind"),
    "too little memory": (gpu_config(mps(defaultPinnedDeviceMemoryLimit="1Ki")), "at least 1Mi"),
    "too many threads": (gpu_config(mps(defaultActiveThreadPercentage=101)), "from 0 to 100"),
    "a MIG config for a GPU": (gpu_config(mps(), "gpu", kind="MigDeviceConfig"), "got a device of type gpu"),
    "a device that is not the claim's": (gpu_config(mps(defaultPerDevicePinnedMemoryLimit={"7": "1Gi"})), "[7]"),
}


@pytest.mark.parametrize(("config", "why"), REFUSED.values(), ids=REFUSED)
async def test_a_refusal_is_told_to_the_pods_author(case, config, why):
    await create(case, "pod", config=(config,))
    assert why in await refusal(case)
    if case.cluster.can("see-node"):
        assert case.cluster.node.sharing("timeSlice") == case.cluster.node.sharing("mps") == {}


async def test_settings_with_admin_access_are_refused(case):
    await create(case, "pod", m.request("gpu", adminAccess=True), config=(gpu_config(slicing("Long")),))
    assert "has admin access" in await refusal(case)
