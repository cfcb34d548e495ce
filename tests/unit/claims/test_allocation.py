from __future__ import annotations

import copy
from typing import Any

import pytest

from driver.claims import allocation
from driver.errors import ClaimRefusedError, InvalidValueError
from tests.unit.claims.helpers import claim, ref, result

SHARE = "b98a178b-5be9-4ea2-99fc-1977135f03cc"


def test_decodes_results() -> None:
    decoded = allocation.decode(claim(1, result("gpu-0", "gpus/large"), result("gpu-1", shareID=SHARE)), ref(1))
    first, second = decoded.results
    assert (first.request, first.device) == ("gpus/large", "gpu-0")
    assert (first.admin_access, first.share_id) == (False, None)
    assert second.share_id == SHARE


def test_M11_other_drivers_results_and_configs_are_skipped() -> None:
    nic = {"driver": "nic.example.com", "request": "nic", "pool": "nics", "device": "eth0"}
    config = [
        {"source": "FromClaim", "opaque": {"driver": "nic.example.com", "parameters": {"anything": 1}}},
        {"source": "FromClass", "requests": ["gpus"], "opaque": {"driver": "gpu.nvidia.com", "parameters": {"a": 1}}},
    ]
    decoded = allocation.decode(claim(1, nic, result("gpu-0"), config=config), ref(1))
    assert [one.device for one in decoded.results] == ["gpu-0"]
    (only,) = decoded.configs
    assert (only.from_class, only.requests, only.parameters) == (True, ("gpus",), {"a": 1})
    assert only.path == "status.allocation.devices.config[1].opaque.parameters"


def test_results_of_other_drivers_only_are_refused_by_name() -> None:
    nic = {"driver": "nic.example.com", "request": "nic", "pool": "nics", "device": "eth0"}
    with pytest.raises(ClaimRefusedError, match=r"no device of gpu\.nvidia\.com: its results are of nic\.example\.com"):
        allocation.decode(claim(1, nic), ref(1))


@pytest.mark.parametrize("status", [None, {}, {"allocation": None}, {"allocation": {}}])
def test_a_claim_that_is_not_allocated_is_refused(status: Any) -> None:
    unallocated = claim(1) | {"status": status}
    with pytest.raises(ClaimRefusedError, match="is not allocated"):
        allocation.decode(unallocated, ref(1))


def test_a_claim_with_another_uid_is_refused_and_both_uids_are_named() -> None:
    with pytest.raises(ClaimRefusedError) as caught:
        allocation.decode(claim(2, result("gpu-0")), ref(1))
    assert ref(1).uid in str(caught.value)
    assert ref(2).uid in str(caught.value)


def test_32_results_are_decoded_and_33_refused() -> None:
    many = [result(f"gpu-{number}") for number in range(33)]
    assert len(allocation.decode(claim(1, *many[:32]), ref(1)).results) == 32
    with pytest.raises(InvalidValueError, match=r"status\.allocation\.devices\.results: invalid value 33: at most 32"):
        allocation.decode(claim(1, *many), ref(1))


RESULT = "status.allocation.devices.results[0]"


@pytest.mark.parametrize(
    ("field", "value", "path"),
    [
        ("device", "../../etc/passwd", f"{RESULT}.device"),
        ("device", "GPU-0", f"{RESULT}.device"),
        ("device", "", f"{RESULT}.device"),
        ("device", 7, f"{RESULT}.device"),
        ("request", None, f"{RESULT}.request"),
        ("request", "gpus\ud800", f"{RESULT}.request"),
        ("pool", "\udfff", f"{RESULT}.pool"),
        ("pool", [], f"{RESULT}.pool"),
        ("driver", 1, f"{RESULT}.driver"),
        ("shareID", "../x", f"{RESULT}.shareID"),
        ("shareID", SHARE.upper(), f"{RESULT}.shareID"),
        ("adminAccess", "yes", f"{RESULT}.adminAccess"),
        ("consumedCapacity", [], f"{RESULT}.consumedCapacity"),
    ],
)
def test_a_malformed_result_names_its_field(field: str, value: Any, path: str) -> None:
    with pytest.raises(InvalidValueError) as caught:
        allocation.decode(claim(1, result("gpu-0") | {field: value}), ref(1))
    assert caught.value.path == path


@pytest.mark.parametrize(
    ("path", "value", "named"),
    [
        (("metadata",), None, "metadata"),
        (("metadata", "uid"), 5, "metadata.uid"),
        (("status", "allocation", "devices"), [], "status.allocation.devices"),
        (("status", "allocation", "devices", "results"), {}, "status.allocation.devices.results"),
        (("status", "allocation", "devices", "results"), ["x"], "status.allocation.devices.results[0]"),
        (("status", "allocation", "devices", "config"), "x", "status.allocation.devices.config"),
        (
            ("status", "allocation", "devices", "config"),
            [{"opaque": {"driver": "gpu.nvidia.com"}}],
            "status.allocation.devices.config[0].opaque.parameters",
        ),
        (
            ("status", "allocation", "devices", "config"),
            [{"requests": [1], "opaque": {"driver": "gpu.nvidia.com", "parameters": {}}}],
            "status.allocation.devices.config[0].requests",
        ),
    ],
)
def test_a_malformed_claim_names_its_field(path: tuple[str, ...], value: Any, named: str) -> None:
    broken = copy.deepcopy(claim(1, result("gpu-0")))
    parent: Any = broken
    for key in path[:-1]:
        parent = parent[key]
    parent[path[-1]] = value
    with pytest.raises(InvalidValueError) as caught:
        allocation.decode(broken, ref(1))
    assert caught.value.path == named
