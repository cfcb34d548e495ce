from __future__ import annotations

from datetime import UTC, datetime

import pytest

from driver.localcluster.apiserver.columns import COLUMNS, age, duration
from tests.unit.localcluster.apiserver.conftest import CLAIMS, PODS, SLICES, a_slice, claim, pod

NOW = datetime(2026, 1, 2, tzinfo=UTC)
TABLE = {"Accept": "application/json;as=Table;v=v1;g=meta.k8s.io,application/json"}


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0, "0s"), (119, "119s"), (120, "2m"), (125, "2m5s"), (599, "9m59s"), (600, "10m"), (10799, "179m"),
        (10800, "3h"), (11000, "3h3m"), (28800, "8h"), (172799, "47h"), (172800, "2d"), (180000, "2d2h"),
        (8 * 86400, "8d"), (729 * 86400, "729d"), (731 * 86400, "2y1d"),
    ],
)  # fmt: skip
def test_durations_are_kubectls(seconds, text):
    assert duration(seconds) == text


def test_ages():
    assert age("2026-01-01T00:00:00Z", NOW) == "24h"
    assert age("2026-01-03T00:00:00Z", NOW) == "0s"
    assert age(None, NOW) == "<unknown>"


def row(plural, obj):
    meta = {"name": "x", "creationTimestamp": "2026-01-01T00:00:00Z", **obj.get("metadata", {})}
    full = {**obj, "metadata": meta}
    return {column.name: column.value(full, NOW) for column in COLUMNS[plural]}


@pytest.mark.parametrize(
    ("pod_object", "status"),
    [
        ({"status": {"phase": "Running"}}, "Running"),
        ({}, "Pending"),
        ({"status": {"phase": "Failed", "reason": "Evicted"}}, "Evicted"),
        ({"metadata": {"deletionTimestamp": "2026-01-01T00:00:00Z"}, "status": {"phase": "Running"}}, "Terminating"),
        ({"spec": {"schedulingGates": [{"name": "g"}]}}, "SchedulingGated"),
        ({"status": {"containerStatuses": [{"state": {"waiting": {"reason": "ErrImagePull"}}}]}}, "ErrImagePull"),
        ({"status": {"containerStatuses": [{"state": {"terminated": {"reason": "Completed"}}}]}}, "Completed"),
        ({"status": {"initContainerStatuses": [{"state": {"running": {}}}]}}, "Init:0/1"),
        ({"status": {"initContainerStatuses": [{"state": {"terminated": {"exitCode": 1, "reason": "E"}}}]}}, "Init:E"),
    ],
)  # fmt: skip
def test_the_status_of_a_pod(pod_object, status):
    assert row("pods", pod_object)["Status"] == status


def test_pods_count_what_is_ready():
    status = {"containerStatuses": [{"ready": True, "restartCount": 2}, {"ready": False, "restartCount": 1}]}
    found = row("pods", {"spec": {"containers": [{}, {}]}, "status": status})
    assert (found["Ready"], found["Restarts"]) == ("1/2", 3)


@pytest.mark.parametrize(
    ("status", "state", "devices"),
    [
        ({}, "pending", "<none>"),
        ({"allocation": {"devices": {"results": [{"pool": "n1", "device": "gpu-0"}]}}}, "allocated", "n1/gpu-0"),
        (
            {"allocation": {"devices": {"results": [{"pool": "n", "device": "a"}, {"pool": "n", "device": "b"}]}},
             "reservedFor": [{"name": "p"}]},
            "allocated,reserved", "n/a,n/b",
        ),
    ],
)  # fmt: skip
def test_claims_show_their_state_and_devices(status, state, devices):
    found = row("resourceclaims", {"status": status})
    assert (found["State"], found["Devices"]) == (state, devices)


def test_slices_show_what_they_hold():
    spec = {"driver": "d", "nodeName": "n", "pool": {"name": "p", "generation": 3}, "devices": [{"taints": [{}]}, {}]}
    found = row("resourceslices", {"spec": spec})
    assert found == {
        "Name": "x", "Node": "n", "Driver": "d", "Pool": "p", "Devices": 2, "Age": "24h", "Tainted": 1, "Generation": 3,
    }  # fmt: skip
    assert row("resourceslices", {"spec": {"allNodes": True}})["Node"] == "<all>"


@pytest.mark.parametrize("plural", sorted(COLUMNS))
def test_every_column_takes_an_empty_object(plural):
    assert len(row(plural, {})) == len(COLUMNS[plural])


async def test_a_list_as_a_table(client):
    await client.ask("POST", SLICES, a_slice())
    found = (await client.ask("GET", SLICES, **TABLE)).body
    names = [column["name"] for column in found["columnDefinitions"] if not column["priority"]]
    assert names == ["Name", "Node", "Driver", "Pool", "Devices", "Age"]
    assert found["rows"][0]["cells"][:5] == ["s", "n1", "gpu.nvidia.com", "n1", 1]
    assert found["rows"][0]["object"]["kind"] == "PartialObjectMetadata"
    assert found["metadata"]["resourceVersion"]


@pytest.mark.parametrize(("include", "kind"), [("Object", "ResourceClaim"), ("Metadata", "PartialObjectMetadata")])
async def test_rows_carry_as_much_of_the_object_as_asked(client, include, kind):
    await client.ask("POST", CLAIMS, claim())
    found = (await client.ask("GET", f"{CLAIMS}/c?includeObject={include}", **TABLE)).body
    assert found["rows"][0]["object"]["kind"] == kind


async def test_a_row_may_carry_nothing(client):
    await client.ask("POST", PODS, pod())
    assert "object" not in (await client.ask("GET", f"{PODS}?includeObject=None", **TABLE)).body["rows"][0]
