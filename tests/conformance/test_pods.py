"""Pods get the GPUs of their claims: the first things that anybody tries."""

from __future__ import annotations

import pytest

from tests.conformance import manifests as m
from tests.conformance.case import uuids


async def test_one_pod_gets_one_gpu(case):
    await case.create(m.template("one"), m.pod("pod", [m.from_template("one")]))
    await case.running("pod")
    given = await case.given("pod")
    assert len(given) == 1
    assert await case.seen("pod") == uuids(given)


@pytest.mark.gpus(2)
async def test_two_pods_get_different_gpus(case):
    await case.create(m.template("one"), m.pod("a", [m.from_template("one")]), m.pod("b", [m.from_template("one")]))
    await case.running("a", "b")
    seen = [await case.seen(name) for name in ("a", "b")]
    assert seen == [uuids(await case.given(name)) for name in ("a", "b")]
    assert len(seen[0] | seen[1]) == 2


@pytest.mark.gpus(4)
async def test_pods_that_come_at_once_get_different_gpus(case):
    names = [f"pod-{number}" for number in range(4)]
    await case.create(m.template("one"), *(m.pod(name, [m.from_template("one")]) for name in names))
    await case.running(*names)
    seen = [await case.seen(name) for name in names]
    assert [len(found) for found in seen] == [1] * 4
    assert len(set.union(*seen)) == 4


async def test_two_containers_of_a_pod_share_a_gpu(case):
    pod = m.pod("pod", [m.from_template("one")], m.container("left", "gpu"), m.container("right", "gpu"))
    await case.create(m.template("one"), pod)
    await case.running("pod")
    assert await case.seen("pod", "left") == await case.seen("pod", "right") == uuids(await case.given("pod"))


async def test_two_pods_share_a_claim(case):
    await case.create(m.claim("shared"), m.pod("a", [m.from_claim("shared")]), m.pod("b", [m.from_claim("shared")]))
    first, second = await case.running("a", "b")
    assert first["spec"]["nodeName"] == second["spec"]["nodeName"]
    assert await case.seen("a") == await case.seen("b") == uuids(await case.given("a"))


async def test_a_second_pod_of_a_claim_keeps_it_when_the_first_goes(case):
    await case.create(m.claim("shared"), m.pod("a", [m.from_claim("shared")]), m.pod("b", [m.from_claim("shared")]))
    await case.running("a", "b")
    await case.delete("Pod", "a")
    await case.create(m.pod("c", [m.from_claim("shared")]))
    await case.running("b", "c")
    assert await case.seen("c") == uuids(await case.given("b"))


@pytest.mark.gpus(2)
async def test_a_pod_with_two_claims_gets_both(case):
    claims = [m.from_template("one", "first"), m.from_template("one", "second")]
    await case.create(m.template("one"), m.pod("pod", claims, m.container("main", "first", "second")))
    await case.running("pod")
    first, second = [uuids(await case.given("pod", name)) for name in ("first", "second")]
    assert len(first | second) == 2
    assert await case.seen("pod") == first | second


@pytest.mark.gpus(2)
async def test_each_container_sees_the_devices_of_its_requests_only(case):
    spec = m.devices(m.request("one"), m.request("two"))
    containers = [
        m.container("one", "gpu/one"),
        m.container("two", "gpu/two"),
        m.container("both", "gpu"),
        m.container("none", command=m.script("command -v nvidia-smi || echo nothing; env | grep GPU_DRA_ || true")),
    ]
    await case.create(m.template("pair", spec), m.pod("pod", [m.from_template("pair")], *containers))
    await case.running("pod")
    one, two = [uuids(await case.given("pod", request=request)) for request in ("one", "two")]
    assert await case.seen("pod", "one") == one
    assert await case.seen("pod", "two") == two
    assert await case.seen("pod", "both") == one | two
    assert "GPU_DRA_DEVICE" not in await case.output("pod", "none")


async def test_init_containers_see_the_gpu_too(case):
    early = m.container("early", "gpu", command=m.script(m.SHOW, wait=False))
    await case.create(m.template("one"), m.pod("pod", [m.from_template("one")], initContainers=[early]))
    await case.running("pod")
    given = uuids(await case.given("pod"))
    assert await case.seen("pod", "early") == await case.seen("pod", "main") == given


async def test_a_sidecar_sees_the_gpu_too(case):
    sidecar = m.container("sidecar", "gpu", restartPolicy="Always")
    await case.create(m.template("one"), m.pod("pod", [m.from_template("one")], initContainers=[sidecar]))
    await case.running("pod")
    assert await case.seen("pod", "sidecar") == await case.seen("pod") == uuids(await case.given("pod"))


async def test_a_claim_that_no_container_uses_is_prepared_nevertheless(case):
    idle = m.container("main", command=m.script("true"))
    await case.create(m.template("one"), m.pod("pod", [m.from_template("one")], idle))
    await case.running("pod")
    claim = await case.claim_of("pod")
    assert len(await case.given("pod")) == 1
    if case.cluster.can("see-node"):
        assert case.cluster.node.left_of(claim["metadata"]["uid"])


@pytest.mark.needs("mounts")
async def test_a_container_that_starts_again_sees_the_same_gpu(case):
    shared = {"volumes": [{"name": "memory", "emptyDir": {}}], "restartPolicy": "OnFailure"}
    mount = [{"name": "memory", "mountPath": "/memory"}]
    first = "[ -e /memory/first ] || { nvidia-smi -L >/memory/first; exit 1; }"
    main = m.container("main", "gpu", command=m.script(first, "cat /memory/first", m.SHOW), volumeMounts=mount)
    await case.create(m.template("one"), m.pod("pod", [m.from_template("one")], main, **shared))
    await case.wait.one("Pod", "pod", _restarted, "has started again")
    assert await case.seen("pod") == uuids(await case.given("pod"))


async def test_gpus_are_free_again_when_a_pod_has_ended(case):
    wanted = case.gpus.require(1)[0]
    spec = m.devices(m.request("gpu", 1, m.is_gpu(wanted.uuid)))
    once = m.container("main", "gpu", command=m.script(m.SHOW, wait=False))
    await case.create(m.template("this", spec), m.pod("first", [m.from_template("this")], once))
    await case.succeeded("first")
    assert await case.seen("first") == {wanted.uuid}
    await case.create(m.pod("second", [m.from_template("this")]))
    await case.running("second")
    assert await case.seen("second") == {wanted.uuid}


async def test_a_held_gpu_is_not_given_again_until_it_is_free(case):
    wanted = case.gpus.require(1)[0]
    spec = m.devices(m.request("gpu", 1, m.is_gpu(wanted.uuid)))
    await case.create(m.template("this", spec), m.pod("first", [m.from_template("this")]))
    await case.running("first")
    await case.create(m.pod("second", [m.from_template("this")]))
    assert "cannot allocate all claims" in await case.unschedulable("second")
    await case.delete("Pod", "first")
    await case.running("second")
    assert await case.seen("second") == {wanted.uuid}


def _restarted(pod):
    return any(
        status.get("restartCount", 0) and "running" in status.get("state", {})
        for status in pod["status"].get("containerStatuses") or ()
    )
