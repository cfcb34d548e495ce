"""May this pod start on this node? The kubelet's own checks, after the scheduler's."""

from __future__ import annotations

from typing import TYPE_CHECKING

from driver.errors import DriverError, PermanentError
from driver.localcluster.kubelet.pod_claims import by_claim, containers_of

if TYPE_CHECKING:
    from driver.localcluster.apiserver.objects import Object
    from driver.localcluster.kubelet.services import NodeServices


class AdmissionError(PermanentError):
    """The pod fails; `reason` is what its status shows."""

    def __init__(self, message: str, *, reason: str) -> None:
        super().__init__(message)
        self.reason = reason


async def admit(services: NodeServices, pod: Object) -> None:
    """Admit a pod: there is what it asks for, and device plugins gave it.

    :raises AdmissionError:
    """
    known = services.devices.resources()
    for resource in _unknown(pod, known):
        text = f"Node didn't have enough resource: {resource}, requested: 1, used: 0, capacity: 0"
        raise AdmissionError(text, reason=f"OutOf{resource}")
    try:
        await services.devices.allocate(pod)
    except DriverError as exc:
        text = f"Allocate failed due to {exc}, which is unexpected"
        raise AdmissionError(text, reason="UnexpectedAdmissionError") from exc


def _unknown(pod: Object, known: dict[str, tuple[int, int]]) -> list[str]:
    """Return the extended resources that neither a device plugin nor a claim gives the pod."""
    claimed = by_claim(pod)
    return [
        name
        for container in containers_of(pod)
        for name, quantity in (container.get("resources", {}).get("limits") or {}).items()
        if "/" in name and str(quantity) != "0" and name not in known and (container["name"], name) not in claimed
    ]
