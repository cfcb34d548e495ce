"""A claim as the API server has it, decoded: only what is this driver's, and only what preparing needs. Pure.

Other drivers' results and configs are skipped (M11). Everything is checked: the object may be anything that a newer
API server, a bug or an attacker with access to `resourceclaims/status` left there.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class ClaimRef:
    """What the kubelet names a claim by."""

    namespace: str
    name: str
    uid: str

    def __str__(self) -> str:
        return f"{self.namespace}/{self.name} ({self.uid})"
