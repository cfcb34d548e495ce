"""Records, containers and samples of fake nodes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from driver.claims.allocation import ClaimRef
from driver.claims.holding import Holding
from driver.claims.record import Record, RecordedDevice
from driver.model.holder import ClaimedDevice, Container
from tests.unit.slices.helpers import NODE

if TYPE_CHECKING:
    from driver.claims.effect import Effect
    from driver.model.mig import Placement


def record(
    name: str, *devices: RecordedDevice, namespace: str = "ml", effects: tuple[Effect, ...] = (), ready: bool = True
) -> Record:
    claim = ClaimRef(namespace=namespace, name=name, uid=f"uid-{name}")
    return Record(claim=claim, boot_id="b", devices=devices, effects=effects, ready=ready)


def held(device: str, gpu_uuid: str, *, placement: Placement | None = None, **more: Any) -> RecordedDevice:
    share, admin = more.pop("share", None), more.pop("admin", False)
    holding = Holding(device=device, gpu_uuid=gpu_uuid, placement=placement, share_id=share, admin_access=admin)
    kind = "gpu" if placement is None else "mig"
    return RecordedDevice(request=more.pop("request", "gpu"), pool=NODE, holding=holding, kind=kind, **more)


def container(pod: str, *claimed: tuple[str, str], name: str = "main", plugged: tuple[str, ...] = ()) -> Container:
    """A container in namespace ml, with devices as (claim, device)."""
    devices = tuple(ClaimedDevice("ml", claim, device) for claim, device in claimed)
    return Container(namespace="ml", pod=pod, name=name, claimed=devices, plugged=plugged)
