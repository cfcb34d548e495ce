from __future__ import annotations

from driver.claims.effect import Partition
from driver.model.holder import ClaimedDevice, Container, Holder
from driver.model.mig import Placement
from driver.telemetry.holders import find_holders
from tests.unit.slices.helpers import NODE, snapshot
from tests.unit.telemetry.builders import container, held, record

SHARE = "0b6c1a6e-2f52-4a7b-8f9e-0d1c2b3a4f5e"


def by_claim(claim: str, device: str, pod: str = "", **more: object) -> Holder:
    named = {"namespace": "ml", "pod": pod, "container": "main"} if pod else {}
    return Holder(
        **{**named, **more},  # type: ignore[arg-type]
        claim_namespace="ml",
        claim=claim,
        claim_uid=f"uid-{claim}",
        pool=NODE,
        device=device,
    )


def test_a_container_has_a_gpu_by_its_claim():
    node = snapshot("h100:2")
    gpu = node.gpus[1]
    found = find_holders([record("c", held("gpu-1", gpu.uuid))], [container("p", ("c", "gpu-1"))], node)
    assert found == {gpu.uuid: (by_claim("c", "gpu-1", "p"),)}


def test_a_claim_that_no_container_uses_holds_its_devices():
    node = snapshot("h100:1")
    uuid = node.gpus[0].uuid
    assert find_holders([record("c", held("gpu-0", uuid))], [], node) == {uuid: (by_claim("c", "gpu-0"),)}


def test_a_claim_shared_by_pods_shows_each():
    node = snapshot("h100:1")
    uuid = node.gpus[0].uuid
    pods = [container("b", ("c", "gpu-0")), container("a", ("c", "gpu-0"))]
    found = find_holders([record("c", held("gpu-0", uuid))], pods, node)
    assert [one.pod for one in found[uuid]] == ["a", "b"]


def test_a_container_has_only_the_devices_that_the_kubelet_gave_it():
    node = snapshot("h100:2")
    both = record("c", held("gpu-0", node.gpus[0].uuid), held("gpu-1", node.gpus[1].uuid))
    found = find_holders([both], [container("p", ("c", "gpu-0"))], node)
    assert [one.pod for one in found[node.gpus[0].uuid]] == ["p"]
    assert [one.pod for one in found[node.gpus[1].uuid]] == [""]


def test_shares_of_one_gpu_are_told_apart():
    node = snapshot("h100:1")
    uuid = node.gpus[0].uuid
    claim = record("c", held("gpu-0", uuid, share=SHARE))
    mine = Container(namespace="ml", pod="p", name="main", claimed=(ClaimedDevice("ml", "c", "gpu-0", SHARE),))
    other = container("other", ("c", "gpu-0"))  # another share of the same device
    found = find_holders([claim], [mine, other], node)
    assert [(one.pod, one.share_id) for one in found[uuid]] == [("p", SHARE)]


def test_a_static_mig_device_by_its_name():
    node = snapshot("h100@mig=1g.10gb*2")
    gpu = node.gpus[0]
    assert gpu.mig is not None
    instance = gpu.mig.instances[1]
    name = f"{gpu.name}-mig-1g10gb-19-{instance.placement.start}"
    found = find_holders([record("c", held(name, gpu.uuid, placement=instance.placement))], [], node)
    assert found == {instance.uuid: (by_claim("c", name),)}


def test_a_mig_device_made_for_the_claim_by_its_own_uuid():
    node = snapshot("h100:1")
    gpu = node.gpus[0]
    place = Placement(0, 1)
    made = Partition(gpu=gpu.uuid, device="gpu-0-mig-1g10gb-19-0", profile_id=19, placement=place, uuid="MIG-new")
    claim = record("c", held(made.device, gpu.uuid, placement=place), effects=(made,))
    assert [*find_holders([claim], [], node)] == ["MIG-new"]


def test_a_mig_device_that_is_gone_is_held_by_nobody():
    node = snapshot("h100:1")
    claim = record("c", held("gpu-0-mig-1g10gb-19-0", node.gpus[0].uuid, placement=Placement(0, 1)))
    assert find_holders([claim], [], node) == {}


def test_devices_of_the_device_plugin():
    node = snapshot("h100:1")
    uuid = node.gpus[0].uuid
    found = find_holders([], [container("p", plugged=(uuid,))], node)
    assert found == {uuid: (Holder(namespace="ml", pod="p", container="main"),)}


def test_admin_access_is_marked():
    node = snapshot("h100:1")
    uuid = node.gpus[0].uuid
    found = find_holders([record("c", held("gpu-0", uuid, admin=True))], [], node)
    assert found[uuid][0].admin
