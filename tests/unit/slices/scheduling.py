"""The embedded scheduler on one node, with slices as the driver builds them."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Any

from driver.localcluster.scheduler import allocator
from driver.localcluster.scheduler.outcome import Allocation
from driver.localcluster.scheduler.state import AllocatedState
from tests.unit.localcluster import support
from tests.unit.slices.helpers import NODE

if TYPE_CHECKING:
    from collections.abc import Sequence

TYPES = {"gpu.nvidia.com": "gpu", "mig.nvidia.com": "mig"}
CLASSES = {
    name: support.device_class(
        name, f"device.driver == '{support.DRIVER}' && device.attributes['{support.DRIVER}'].type == '{kind}'"
    )
    for name, kind in TYPES.items()
}


class Cluster:
    """One node with the slices of a snapshot; claims come one by one."""

    def __init__(self, specs: Sequence[dict[str, Any]]) -> None:
        slices = [{"metadata": {"name": f"{index:02d}"}, "spec": spec} for index, spec in enumerate(specs)]
        self.attributes = {device["name"]: device["attributes"] for spec in specs for device in spec.get("devices", ())}
        self._pools = support.pools_of(slices)
        self._state = AllocatedState()
        self._ids = itertools.count()
        self._names = itertools.count()

    def allocate(self, spec: dict[str, Any]) -> list[dict[str, Any]] | None:
        """Return what a claim gets, None if it stays pending."""
        meta = {"namespace": "n", "name": f"c{next(self._names)}", "uid": str(next(self._ids))}
        claim = {"metadata": meta, "spec": spec}
        outcome = allocator.allocate(
            [claim], CLASSES, self._pools, self._state, support.node(NODE), new_id=lambda: f"share-{next(self._ids)}"
        )
        if not isinstance(outcome, Allocation):
            return None
        allocation = outcome.claims[f"n/{meta['name']}"]
        self._state.put({**claim, "status": {"allocation": allocation}})
        results: list[dict[str, Any]] = allocation["devices"]["results"]
        return results

    def kind(self, device: str) -> str:
        """Return a device's profile; `gpu` if it is a whole one."""
        return str(self.attributes[device].get("profile", {"string": "gpu"})["string"])


def wanted(profile: str) -> dict[str, Any]:
    """Return the spec of a claim for a profile."""
    expression = f"device.attributes['{support.DRIVER}'].profile == '{profile}'"
    return support.claim("c", support.request("r", expression, cls="mig.nvidia.com"))["spec"]  # type: ignore[no-any-return]


WHOLE = support.claim("c", support.request("r", cls="gpu.nvidia.com"))["spec"]
