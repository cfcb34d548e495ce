"""Who has a device: the containers of pods, as the kubelet tells, and the claims behind them. Pure."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, order=True)
class ClaimedDevice:
    """A device that a container has by a claim."""

    namespace: str
    claim: str
    device: str
    share_id: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Container:
    """A container with devices: `claimed` by claims with this driver, `plugged` (UUIDs) by device plugins."""

    namespace: str
    pod: str
    name: str
    claimed: tuple[ClaimedDevice, ...] = ()
    plugged: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True, order=True)
class Holder:
    """One container that has a device, or a claim that nobody uses yet; what isn't known is empty."""

    namespace: str = ""  # of the pod
    pod: str = ""
    container: str = ""
    claim_namespace: str = ""
    claim: str = ""
    claim_uid: str = ""
    pool: str = ""
    device: str = ""  # its name in the pool
    share_id: str = ""
    admin: bool = False  # it looks at the device beside its users
