"""Against the embedded API server: over TLS, with its own server-side apply, validation and RBAC."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import pytest

from driver.claims.status_writer import ClaimStatusWriter
from driver.kube.client import KubeClient
from driver.kube.resources import ResourceApi
from driver.localcluster.apiserver import ApiServer, Fault, Features
from driver.model.health import Health
from tests.deploy.manifests import build
from tests.unit.slices.helpers import FELL_OFF, NODE, snapshot
from tests.unit.telemetry.builders import held, record
from tests.waiting import until

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from driver.claims.record import Record

STATUS = "resourceclaims/status"


@dataclass
class World:
    """A node's records and GPUs, an API server, and the writer between them."""

    server: ApiServer
    snapshot: Any = field(default_factory=lambda: snapshot("h100:4"))
    records: dict[str, Record] = field(default_factory=dict)
    told: list[tuple[str, str]] = field(default_factory=list)
    counted: list[str] = field(default_factory=list)
    now: datetime = datetime(2026, 1, 1, tzinfo=UTC)
    clients: list[KubeClient] = field(default_factory=list)
    tasks: list[asyncio.Task[None]] = field(default_factory=list)

    @property
    def store(self) -> Any:
        return self.server.store

    def allocate(self, name: str, *devices: str, others: tuple[str, ...] = (), prepared: bool = True) -> Record:
        """Create a claim that is allocated to GPUs of this node, and to devices of another driver."""
        request = {"name": "gpu", "exactly": {"deviceClassName": "gpu.nvidia.com", "count": len(devices)}}
        body = {"metadata": {"name": name}, "spec": {"devices": {"requests": [request]}}}
        made = self.store.create("resourceclaims", body, "ml")
        results = [{"request": "gpu", "driver": "gpu.nvidia.com", "pool": NODE, "device": one} for one in devices]
        results += [{"request": "gpu", "driver": "nic.example.com", "pool": NODE, "device": one} for one in others]
        fields = [{"key": "metadata.name", "operator": "In", "values": [NODE]}]
        allocation = {
            "devices": {"results": results},
            "nodeSelector": {"nodeSelectorTerms": [{"matchFields": fields}]},
        }
        self.store.update_status("resourceclaims", {**made, "status": {"allocation": allocation}})
        uuids = {gpu.name: gpu.uuid for gpu in self.snapshot.gpus}
        found = record(name, *(held(one, uuids.get(one, "GPU-x")) for one in devices))
        found = replace(found, claim=replace(found.claim, uid=made["metadata"]["uid"]))
        if prepared:
            self.records[name] = found
        return found

    async def current(self) -> tuple[Record, ...]:
        return tuple(self.records.values())

    def writer(self, kubeconfig: Path | None = None, **changes: Any) -> ClaimStatusWriter:
        client = KubeClient.from_kubeconfig(kubeconfig or self.server.kubeconfig, timeout=5)
        self.clients.append(client)
        made = ClaimStatusWriter(
            ResourceApi(client),
            records=self.current,
            snapshot=lambda: self.snapshot,
            tell=self,
            observer=self,
            now=lambda: self.now,
            **changes,
        )
        self.tasks.append(asyncio.create_task(made.run()))
        return made

    def emit(self, reason: str, message: str, *, warning: bool = False) -> None:
        self.told.append((reason, message))

    def claim_status_written(self, error_type: str = "") -> None:
        self.counted.append(error_type)

    def entries(self, name: str) -> list[dict[str, Any]]:
        claim = self.store.find("resourceclaims", name, "ml") or {}
        found: list[dict[str, Any]] = (claim.get("status") or {}).get("devices") or []
        return found

    def health(self, name: str) -> str:
        ours = [entry for entry in self.entries(name) if entry["driver"] == "gpu.nvidia.com"]
        return next((one["status"] for entry in ours for one in entry["conditions"] if one["type"] == "Healthy"), "")

    def break_gpu(self, index: int) -> None:
        bad = Health(healthy=False, reason="XID 79", taints=(FELL_OFF,))
        self.snapshot = replace(self.snapshot, health=MappingProxyType({self.snapshot.gpus[index].uuid: bad}))

    @property
    def writes(self) -> int:
        return sum(call.resource == "resourceclaims" and call.verb == "patch" for call in self.server.audit.calls)


@pytest.fixture(autouse=True)
def _soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("driver.claims.status_writer._SETTLE", 0.01)
    monkeypatch.setattr("driver.claims.status_writer._FIRST_PAUSE", 0.05)


@pytest.fixture
async def make_world(tmp_path: Path) -> AsyncIterator[Any]:
    worlds: list[World] = []

    async def make(features: Features | None = None, *, authorization: bool = False) -> World:
        server = ApiServer(tmp_path / "api", features, authorization=authorization)
        await server.start()
        server.store.create("namespaces", {"metadata": {"name": "ml"}})
        server.store.create("nodes", {"metadata": {"name": NODE}})
        worlds.append(World(server))
        return worlds[-1]

    yield make
    for world in worlds:
        for task in world.tasks:
            task.cancel()
        await asyncio.gather(*world.tasks, return_exceptions=True)
        for client in world.clients:
            await client.aclose()
        await world.server.stop()


@pytest.fixture
async def world(make_world: Any) -> World:
    made: World = await make_world()
    return made


async def test_a_prepared_claim_is_told_about_its_devices(world: World) -> None:
    world.allocate("c", "gpu-0", "gpu-1")
    world.writer()
    await until(lambda: len(world.entries("c")) == 2)
    assert {entry["data"]["uuid"] for entry in world.entries("c")} == {gpu.uuid for gpu in world.snapshot.gpus[:2]}
    assert world.health("c") == "True"
    await until(lambda: world.counted == [""])


async def test_health_is_kept_current_and_costs_one_write_per_claim(world: World) -> None:
    world.allocate("sick", "gpu-0")
    world.allocate("well", "gpu-1")
    writer = world.writer()
    await until(lambda: world.health("sick") and world.health("well"))
    before = world.writes
    world.now = datetime(2026, 1, 2, tzinfo=UTC)
    world.break_gpu(0)
    for _ in range(100):
        writer.publish(world.snapshot)
    await until(lambda: world.health("sick") == "False")
    writer.changed()
    world.allocate("later", "gpu-2")
    await until(lambda: world.health("later"))
    assert world.writes == before + 2
    (entry,) = world.entries("sick")
    times = {one["type"]: one["lastTransitionTime"] for one in entry["conditions"]}
    assert times == {"Ready": "2026-01-01T00:00:00Z", "Healthy": "2026-01-02T00:00:00Z"}


async def test_entries_of_other_drivers_stay(world: World) -> None:
    world.allocate("c", "gpu-0", others=("nic-0",))
    claim = world.store.get("resourceclaims", "c", "ml")
    nic = {"driver": "nic.example.com", "pool": NODE, "device": "nic-0", "data": {"a": 1}}
    world.store.update_status("resourceclaims", {**claim, "status": {**claim["status"], "devices": [nic]}})
    writer = world.writer(take_back=0.05)
    await until(lambda: len(world.entries("c")) == 2)
    assert nic in world.entries("c")
    world.records.clear()
    writer.changed()
    await until(lambda: world.entries("c") == [nic])


async def test_after_a_restart_nothing_is_written_again_and_times_stay(world: World) -> None:
    world.allocate("c", "gpu-0")
    world.writer()
    await until(lambda: world.health("c"))
    world.tasks[0].cancel()
    world.now = datetime(2026, 1, 2, tzinfo=UTC)
    writes = world.writes
    writer = world.writer()
    world.allocate("other", "gpu-1")
    writer.changed()
    await until(lambda: world.health("other"))
    assert world.writes == writes + 1
    assert world.entries("c")[0]["conditions"][0]["lastTransitionTime"] == "2026-01-01T00:00:00Z"


async def test_a_claim_that_is_prepared_again_in_time_keeps_its_entries(world: World) -> None:
    kept = world.allocate("c", "gpu-0")
    writer = world.writer(take_back=1000)
    await until(lambda: world.health("c"))
    world.records.clear()
    writer.changed()
    world.allocate("other", "gpu-1")
    writer.changed()
    await until(lambda: world.health("other"))
    world.records["c"] = kept
    world.break_gpu(0)
    writer.changed()
    await until(lambda: world.health("c") == "False")


async def test_a_claim_that_was_made_for_a_pod_is_not_taken_back(world: World) -> None:
    """It is deleted or deallocated with the pod: a write would come too late each time."""
    made = world.allocate("c", "gpu-0", prepared=False)
    world.records["c"] = replace(made, pod_claim="gpu")
    writer = world.writer(take_back=0.01)
    await until(lambda: world.health("c"))
    world.records.clear()
    world.allocate("later", "gpu-1")
    writer.changed()
    await until(lambda: world.health("later"))
    world.records.clear()
    writer.changed()
    await until(lambda: not world.entries("later"))
    assert world.entries("c")
    claim = world.store.get("resourceclaims", "c", "ml")
    status = {key: value for key, value in claim["status"].items() if key != "allocation"}
    world.store.update_status("resourceclaims", {**claim, "status": status})
    assert world.entries("c") == []


async def test_a_claim_deleted_with_its_pod_is_left_in_peace(world: World) -> None:
    world.allocate("c", "gpu-0")
    writer = world.writer(take_back=0.01)
    await until(lambda: world.health("c"))
    world.store.delete("resourceclaims", "c", "ml")
    world.records.clear()
    writer.changed()
    await until(lambda: {"ApiNotFoundError", "ApiConflictError"} & set(world.counted[-1:]))
    assert world.told == []


async def test_a_claim_of_the_same_name_gets_nothing_of_the_old_one(world: World) -> None:
    old = world.allocate("c", "gpu-0", prepared=False)
    world.store.delete("resourceclaims", "c", "ml")
    world.allocate("c", "gpu-0", prepared=False)
    world.records["c"] = old
    world.writer()
    await until(lambda: world.counted)
    world.allocate("other", "gpu-1")
    world.tasks[0].cancel()
    world.writer()
    await until(lambda: world.health("other"))
    assert world.entries("c") == []
    assert world.told == []


async def test_a_claim_that_lost_its_devices_is_no_news(world: World) -> None:
    found = world.allocate("c", "gpu-0", prepared=False)
    claim = world.store.get("resourceclaims", "c", "ml")
    world.store.update_status("resourceclaims", {**claim, "status": {}})
    world.records["c"] = found
    world.writer()
    await until(lambda: "ApiInvalidError" in world.counted)
    world.allocate("other", "gpu-1")
    world.tasks[0].cancel()
    world.writer()
    await until(lambda: world.health("other"))
    assert world.told == []


# --- an API server that does not want it ------------------------------------------------------------------------------


async def test_422_is_told_once_and_costs_that_claim_only(world: World, caplog: pytest.LogCaptureFixture) -> None:
    world.allocate("bad", "gpu-0")
    world.allocate("good", "gpu-1")

    def of_bad(call: Any) -> bool:
        return bool(call.name == "bad" and call.subresource == "status")

    world.server.faults.add(Fault(when=of_bad, status=422, message="spec.x: is wrong"))
    writer = world.writer()
    await until(lambda: world.health("good"))
    for index in range(3):
        world.allocate(f"more-{index}", "gpu-2")
        writer.changed()
        await until(lambda name=f"more-{index}": world.health(name))
    assert world.counted.count("ApiInvalidError") == 1
    ((reason, message),) = world.told
    assert reason == "ClaimStatusRefused"
    assert "ml/bad" in message
    assert "is wrong" in message
    world.server.faults.clear()
    world.break_gpu(0)  # something else to say: it is tried again
    writer.changed()
    await until(lambda: world.health("bad") == "False")


async def test_a_server_without_the_feature_is_noticed_once(make_world: Any, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    world: World = await make_world(Features(gates={"DRAResourceClaimDeviceStatus": False}))
    world.allocate("c", "gpu-0")
    writer = world.writer()
    await until(lambda: "DRAResourceClaimDeviceStatus" in caplog.text)
    world.allocate("d", "gpu-1")
    writer.changed()
    await asyncio.sleep(0.2)  # long enough for twenty rounds
    assert world.writes == 1
    assert world.told == []


@pytest.mark.parametrize("status", [409, 429, 500, 503])
async def test_what_may_pass_is_tried_again(world: World, status: int) -> None:
    world.allocate("c", "gpu-0")
    world.server.faults.add(Fault.on("patch", STATUS, status=status, times=2))
    world.writer()
    await until(lambda: world.health("c"))
    assert world.told == []


async def test_a_server_that_is_away_at_first(world: World) -> None:
    world.allocate("c", "gpu-0")
    await world.server.stop()
    world.writer()
    await until(lambda: world.tasks)
    await world.server.start()
    await until(lambda: world.health("c"))


# --- RBAC -------------------------------------------------------------------------------------------------------------


def install_role(world: World, *, without: str = "") -> Path:
    """Create the agent's account and its role as deployed; return a kubeconfig that is bound to the node."""
    for item in build("base"):
        if item["kind"] == "ClusterRole":
            rules = [rule for rule in item["rules"] if without not in rule["resources"]]
            world.store.create("clusterroles", {**item, "rules": rules})
        elif item["kind"] == "ClusterRoleBinding":
            world.store.create("clusterrolebindings", item)
        elif item["kind"] == "Namespace":
            world.store.create("namespaces", item)
    account = next(item for item in build("base") if item["kind"] == "ServiceAccount")
    world.store.create("serviceaccounts", account, "gpu-dra")
    return world.server.kubeconfig_for_service_account("gpu-dra", "gpu-dra", node=NODE)


@pytest.mark.parametrize("kubernetes", ["1.34", "1.36"])
async def test_P4_the_deployed_role_is_enough(make_world: Any, kubernetes: str) -> None:
    world: World = await make_world(Features(kubernetes=kubernetes), authorization=True)
    world.allocate("c", "gpu-0")
    world.writer(install_role(world))
    await until(lambda: world.health("c"))


@pytest.mark.parametrize("without", ["resourceclaims/status", "resourceclaims/driver"])
async def test_a_missing_permission_is_told_once_with_what_to_do(make_world: Any, without: str) -> None:
    world: World = await make_world(Features(kubernetes="1.36"), authorization=True)
    world.allocate("c", "gpu-0")
    world.allocate("d", "gpu-1")
    world.writer(install_role(world, without=without))
    await until(lambda: world.told)
    ((reason, message),) = world.told
    assert reason == "ClaimStatusForbidden"
    assert "associated-node:patch on resourceclaims/driver" in message
    assert set(world.counted) == {"ApiForbiddenError"}
