from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from driver.model.shares import Shares
from driver.slices.build import build
from driver.slices.devices import FACTS_LIMIT
from driver.slices.shares import shared
from tests.unit.slices.helpers import OPTIONS, PARTITIONS, add, new_store, partitioned, snapshot

MODES = ["memory", "unlimited", "4"]
WHOLE = "81559Mi"


def devices(spec: str, shares: str, **changes: Any) -> list[dict[str, Any]]:
    specs = build(snapshot(spec, **changes), replace(OPTIONS, shares=Shares.parse(shares)))
    add(new_store(), specs)
    return [device for one in specs for device in one["devices"]]


@pytest.mark.parametrize(
    ("shares", "memory", "rest"),
    [
        ("disabled", {"value": WHOLE}, {}),
        (
            "memory",
            {
                "value": WHOLE,
                "requestPolicy": {"default": WHOLE, "validRange": {"min": "1Mi", "max": WHOLE, "step": "1Mi"}},
            },
            {},
        ),
        (
            "unlimited",
            {
                "value": WHOLE,
                "requestPolicy": {"default": "0", "validRange": {"min": "0", "max": WHOLE, "step": "1Mi"}},
            },
            {},
        ),
        (
            "10",
            {
                "value": WHOLE,
                "requestPolicy": {"default": "0", "validRange": {"min": "0", "max": WHOLE, "step": "1Mi"}},
            },
            {
                "shares": {
                    "value": "10",
                    "requestPolicy": {"default": "1", "validRange": {"min": "1", "max": "10", "step": "1"}},
                }
            },
        ),
    ],
)
def test_a_gpu_is_shared_as_the_peer_shares_it(shares: str, memory: dict[str, Any], rest: dict[str, Any]) -> None:
    (device,) = devices("h100", shares)
    assert device["capacity"] == {"memory": memory, **rest}
    assert device.get("allowMultipleAllocations", False) is (shares != "disabled")
    (plain,) = devices("h100", "disabled")
    assert device["attributes"] == plain["attributes"]


@pytest.mark.parametrize("shares", MODES)
def test_a_mig_device_leaves_its_engines_to_other_claims(shares: str) -> None:
    device = devices("h100@mig=3g.40gb", shares)[0]
    assert device["allowMultipleAllocations"] is True
    policies = {name: one.get("requestPolicy") for name, one in device["capacity"].items()}
    assert policies.pop("memory")["default"] == ("40448Mi" if shares == "memory" else "0")
    assert (policies.pop("shares", None) is not None) is (shares == "4")
    assert policies.pop("encoders") is None  # there are none: nobody takes any
    assert policies.pop("ofaEngines") is None
    assert {policy["default"] for policy in policies.values()} == {"0"}
    assert policies["multiprocessors"]["validRange"] == {"min": "0", "max": "60", "step": "1"}


@pytest.mark.parametrize("shares", MODES)
def test_partitions_are_shared_too_and_take_their_counters(shares: str) -> None:
    specs = build(partitioned("h100:2"), replace(PARTITIONS, shares=Shares.parse(shares)))
    add(new_store(), specs)
    found = [device for spec in specs for device in spec.get("devices", ())]
    assert all(device["allowMultipleAllocations"] for device in found)
    plain = build(partitioned("h100:2"), PARTITIONS)
    counters = [device["consumesCounters"] for spec in plain for device in spec.get("devices", ())]
    assert [device["consumesCounters"] for device in found] == counters
    assert specs[0] == plain[0]


@pytest.mark.parametrize("shares", MODES)
@pytest.mark.parametrize("spec", ["t4,l4,l40s,a10,a30,h200,b200", "rtx-pro-6000@mig=2g.48gb*2,h100@mig=7g.80gb"])
def test_an_api_server_takes_every_product(spec: str, shares: str) -> None:
    for device in devices(spec, shares):
        assert len(device["attributes"]) + len(device["capacity"]) <= FACTS_LIMIT


@pytest.mark.parametrize(
    ("memory", "shares", "multiple", "shown"),
    [
        ((80 << 30) + 5, "memory", True, "80Gi"),  # a range must end at a multiple of its step
        ((1 << 20) - 1, "memory", False, "1048575"),
        ((1 << 20) - 1, "unlimited", True, "0"),
        (1 << 20, "memory", True, "1Mi"),
        (None, "memory", False, None),
        (None, "unlimited", True, None),
        (None, "3", True, None),
    ],
)
def test_memory_is_shared_in_whole_mib(memory: int | None, shares: str, multiple: bool, shown: str | None) -> None:
    (device,) = devices("h100", shares, memory=memory)
    assert device.get("allowMultipleAllocations", False) is multiple
    assert device.get("capacity", {}).get("memory", {}).get("value") == shown


def test_an_exclusive_device_stays_as_it_is() -> None:
    item = {"name": "gpu-0", "capacity": {"memory": {"value": "5"}}}
    assert shared(item, Shares()) is item
