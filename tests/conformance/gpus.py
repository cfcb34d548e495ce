"""The GPUs of the cluster under test, as its ResourceSlices tell them."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pytest

from tests.conformance.manifests import DRIVER

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tests.conformance.api import Object


@dataclass(frozen=True, slots=True, kw_only=True)
class Gpu:
    """A whole GPU, as published."""

    pool: str
    name: str
    attributes: dict[str, Any]
    """Those of the driver's own by name, others with their domain; values without their types."""
    memory: int | str
    """As the slice has it (`81559Mi`)."""

    @property
    def uuid(self) -> str:
        """Its UUID."""
        return str(self.attributes["uuid"])

    @property
    def product(self) -> str:
        """Its product's name."""
        return str(self.attributes["productName"])


class Gpus:
    """All whole GPUs of the driver."""

    def __init__(self, slices: Sequence[Object]) -> None:
        self.all = [
            _gpu(item["spec"]["pool"]["name"], device)
            for item in slices
            for device in item["spec"].get("devices") or ()
            if _value(device["attributes"].get("type", {"string": ""})) == "gpu"
        ]
        self._by_place = {(gpu.pool, gpu.name): gpu for gpu in self.all}

    def at(self, pool: str, device: str) -> Gpu:
        """Return a GPU by its place."""
        return self._by_place[pool, device]

    def like(self, pattern: str) -> list[Gpu]:
        """Return those whose product's name matches."""
        return [gpu for gpu in self.all if re.search(pattern, gpu.product)]

    def require(self, count: int = 1, pattern: str = "", *, linked: bool = False) -> list[Gpu]:
        """Return the matching GPUs of one node, of one NVLink domain if `linked`, where there are most.

        Skips the test if there are fewer than `count`.
        """
        found = self.like(pattern)
        groups: dict[tuple[str, str], list[Gpu]] = {}
        for gpu in found:
            groups.setdefault((gpu.pool, str(gpu.attributes["nvlinkDomain"]) if linked else ""), []).append(gpu)
        best = max(groups.values(), key=len, default=[])
        if len(best) < count:
            products = ", ".join(sorted({gpu.product for gpu in self.all}))
            which = f" whose product matches {pattern!r}" if pattern else ""
            how = " that are connected by NVLink" if linked else ""
            pytest.skip(f"needs {count} GPUs{which}{how} on one node; there are {len(best)} (of {products})")
        return best

    def other_than(self, gpu: Gpu) -> list[Gpu]:
        """Return the GPUs of other products; skip the test if there is none."""
        others = [one for one in self.all if one.product != gpu.product]
        if not others:
            pytest.skip(f"needs GPUs of two products; all are {gpu.product}")
        return others


def is_complete(slices: Sequence[Object]) -> bool:
    """Say whether every pool of the driver has all its slices, and there is one."""
    pools: dict[str, list[Object]] = {}
    for item in slices:
        if item["spec"]["driver"] == DRIVER:
            pools.setdefault(item["spec"]["pool"]["name"], []).append(item["spec"]["pool"])
    return bool(pools) and all(_whole(pool) for pool in pools.values())


def _whole(pool: list[Object]) -> bool:
    newest = max(item["generation"] for item in pool)
    current = [item for item in pool if item["generation"] == newest]
    return len(current) == current[0]["resourceSliceCount"]


def _gpu(pool: str, device: Object) -> Gpu:
    attributes = {name: _value(value) for name, value in device["attributes"].items()}
    return Gpu(pool=pool, name=device["name"], attributes=attributes, memory=device["capacity"]["memory"]["value"])


def _value(typed: dict[str, Any]) -> Any:
    return next(iter(typed.values()))
