"""What a version of Kubernetes has on, off or not at all. Pure."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from driver.errors import InvalidValueError

if TYPE_CHECKING:
    from collections.abc import Mapping

VERSIONS: Final = ("1.34", "1.35", "1.36", "1.37")
"""The versions that the embedded cluster can behave as."""

DRA_VERSIONS: Final = ("v1", "v1beta2", "v1beta1")
"""The versions of `resource.k8s.io`, the preferred one first."""

_OFF, _ON, _LOCKED = False, True, None
# Per gate the state in each of VERSIONS; `_LOCKED`: generally available, can't be switched off; absent: unknown there.
_GATES: Final[Mapping[str, Mapping[str, bool | None]]] = {
    "DRAAdminAccess": {"1.34": _ON, "1.35": _ON, "1.36": _LOCKED, "1.37": _LOCKED},
    "DRAPrioritizedList": {"1.34": _ON, "1.35": _ON, "1.36": _LOCKED, "1.37": _LOCKED},
    "DRAResourceClaimDeviceStatus": {"1.34": _ON, "1.35": _ON, "1.36": _ON, "1.37": _LOCKED},
    "DRAPartitionableDevices": {"1.34": _OFF, "1.35": _OFF, "1.36": _ON, "1.37": _ON},
    "DRAConsumableCapacity": {"1.34": _OFF, "1.35": _OFF, "1.36": _ON, "1.37": _ON},
    "DRADeviceTaints": {"1.34": _OFF, "1.35": _OFF, "1.36": _ON, "1.37": _LOCKED},
    "DRAExtendedResource": {"1.34": _OFF, "1.35": _OFF, "1.36": _ON, "1.37": _LOCKED},
    "ResourceHealthStatus": {"1.34": _OFF, "1.35": _OFF, "1.36": _ON, "1.37": _ON},
    "DRADeviceBindingConditions": {"1.34": _OFF, "1.35": _OFF, "1.36": _ON, "1.37": _ON},
    "DRAListTypeAttributes": {"1.36": _OFF, "1.37": _OFF},
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Features:
    """The switches of one cluster.

    :raises InvalidValueError: for an unknown version or gate, or a gate that this version has locked.
    """

    kubernetes: str = "1.36"
    gates: Mapping[str, bool] = field(default_factory=dict)
    dra_versions: tuple[str, ...] = DRA_VERSIONS
    """The served versions of `resource.k8s.io`, the preferred one first."""

    def __post_init__(self) -> None:
        if self.kubernetes not in VERSIONS:
            raise InvalidValueError("kubernetes", self.kubernetes, f"one of {', '.join(VERSIONS)}")
        for name, on in self.gates.items():
            self._check_gate(name, on)
        if not self.dra_versions or not set(self.dra_versions) <= set(DRA_VERSIONS):
            raise InvalidValueError("dra_versions", self.dra_versions, f"some of {', '.join(DRA_VERSIONS)}")

    def _check_gate(self, name: str, on: bool) -> None:
        states = _GATES.get(name, {})
        if self.kubernetes not in states:
            known = sorted(gate for gate, by_version in _GATES.items() if self.kubernetes in by_version)
            raise InvalidValueError("feature-gates", name, f"Kubernetes {self.kubernetes} knows {', '.join(known)}")
        if states[self.kubernetes] is _LOCKED and not on:
            raise InvalidValueError("feature-gates", f"{name}=false", f"locked to true in {self.kubernetes}")

    def enabled(self, gate: str) -> bool:
        """Say whether a gate is on; one that this version does not know is off."""
        default = _GATES[gate].get(self.kubernetes, False)
        return True if default is _LOCKED else self.gates.get(gate, bool(default))

    @property
    def minor(self) -> int:
        """The minor version; the major one is 1."""
        return int(self.kubernetes.split(".")[1])

    @property
    def git_version(self) -> str:
        """What `/version` tells."""
        return f"v{self.kubernetes}.0"


_GATE = re.compile(r"([A-Za-z0-9]+)=(true|false)")


def parse_gates(text: str) -> dict[str, bool]:
    """Parse `A=true,B=false`, as Kubernetes' own flag.

    :raises InvalidValueError: for anything else.
    """
    gates = {}
    for part in filter(None, (piece.strip() for piece in text.split(","))):
        match = _GATE.fullmatch(part)
        if match is None:
            raise InvalidValueError("feature-gates", part, "Gate=true or Gate=false, separated by commas")
        gates[match[1]] = match[2] == "true"
    return gates
