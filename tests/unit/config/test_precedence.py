from __future__ import annotations

from typing import Any

import pytest

from driver.config.parameters import GpuConfig, MigDeviceConfig, OpaqueConfig, decode
from driver.config.precedence import effective
from driver.errors import InvalidValueError

API = "resource.nvidia.com/v1beta1"


def slicing(interval: str) -> dict[str, Any]:
    sharing = {"strategy": "TimeSlicing", "timeSlicingConfig": {"interval": interval}}
    return {"apiVersion": API, "kind": "GpuConfig", "sharing": sharing}


MIG = {"apiVersion": API, "kind": "MigDeviceConfig", "sharing": {"strategy": "MPS"}}


def config(parameters: dict[str, Any], *requests: str, from_class: bool = False) -> OpaqueConfig:
    return OpaqueConfig(path="c", from_class=from_class, requests=requests, parameters=parameters)


@pytest.mark.parametrize(
    ("configs", "expected"),
    [
        ([], {}),
        ([config(slicing("Short"))], {"a": "Short", "b/x": "Short"}),
        ([config(slicing("Short"), "a")], {"a": "Short"}),
        ([config(slicing("Short"), "b")], {"b/x": "Short"}),
        ([config(slicing("Short"), "b/x")], {"b/x": "Short"}),
        ([config(slicing("Short"), "b/y")], {}),
        ([config(slicing("Short"), "a", from_class=True), config(slicing("Long"), "a")], {"a": "Long"}),
        ([config(slicing("Short"), "a", from_class=True), config(slicing("Long"))], {"a": "Long", "b/x": "Long"}),
        ([config(slicing("Short"), "a"), config(slicing("Long"))], {"a": "Long", "b/x": "Long"}),
        ([config(slicing("Short")), config(slicing("Long"), "a")], {"a": "Long", "b/x": "Short"}),
        ([config(slicing("Short"), "a"), config(MIG)], {"a": "Short"}),
    ],
)
def test_the_later_wins_for_each_request_that_it_means(configs: list[OpaqueConfig], expected: dict[str, str]) -> None:
    chosen = effective(configs, {"a": "gpu", "b/x": "gpu", "m": "mig"})
    gpus = {request: one for request, one in chosen.items() if isinstance(one, GpuConfig)}
    assert gpus == {request: decode(slicing(interval), "p") for request, interval in expected.items()}


def test_configs_without_requests_apply_by_type() -> None:
    chosen = effective([config(MIG), config(slicing("Long"))], {"a": "gpu", "m": "mig"})
    assert isinstance(chosen["a"], GpuConfig)
    assert isinstance(chosen["m"], MigDeviceConfig)


@pytest.mark.parametrize(("parameters", "request_name"), [(MIG, "a"), (slicing("Long"), "m")])
def test_a_named_request_of_another_type_is_an_error(parameters: dict[str, Any], request_name: str) -> None:
    with pytest.raises(InvalidValueError, match=rf"c\.kind.*request {request_name} got a device of type"):
        effective([config(parameters, request_name)], {"a": "gpu", "m": "mig"})


MULTI_USER = {"apiVersion": API, "kind": "GpuConfig", "sharing": {"strategy": "MPS", "mpsConfig": {"multiUser": True}}}


@pytest.mark.parametrize(
    ("configs", "shared", "allowed"),
    [
        ([config(MULTI_USER)], (), True),
        ([config(MULTI_USER, "a")], ("b",), True),
        ([config(MULTI_USER)], ("a",), False),
        ([config(MULTI_USER, "a")], ("a",), False),
        ([config(MULTI_USER, "b")], ("a",), True),
        ([config(MULTI_USER, from_class=True)], ("a",), True),
        ([config(MULTI_USER, from_class=True), config(MULTI_USER)], ("a",), False),
        ([config(MULTI_USER), config(slicing("Long"))], ("a",), True),
        ([config(slicing("Long"), from_class=True), config(MULTI_USER)], ("a",), False),
    ],
)
def test_what_weakens_the_walls_between_claims_is_for_classes_only(
    configs: list[OpaqueConfig], shared: tuple[str, ...], allowed: bool
) -> None:
    if allowed:
        assert effective(configs, {"a": "gpu", "b": "gpu"}, shared)
        return
    with pytest.raises(InvalidValueError, match="only a DeviceClass may set it") as caught:
        effective(configs, {"a": "gpu", "b": "gpu"}, shared)
    assert caught.value.path == "c.sharing.mpsConfig.multiUser"
