"""The claims that pods of this node use, kept across restarts so that each is unprepared once."""

from __future__ import annotations

import json
import logging
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from driver.errors import StorageError
from driver.files import write_atomic

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

_log = logging.getLogger(__name__)
_VERSION = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Device:
    """A prepared device, as a plugin answered."""

    requests: tuple[str, ...]
    pool: str
    name: str
    cdi: tuple[str, ...]
    share: str | None = None

    def serves(self, request: str) -> bool:
        """Say whether a container that names `request` gets this device; an empty name on either side means all."""
        return not request or not self.requests or request in self.requests


@dataclass(slots=True, kw_only=True)
class ClaimInfo:
    """One claim. `prepared` is true only if this very process of the kubelet prepared it."""

    uid: str
    namespace: str
    name: str
    drivers: tuple[str, ...]
    pods: set[str] = field(default_factory=set)
    devices: dict[str, list[Device]] = field(default_factory=dict)
    prepared: bool = False

    @property
    def ref(self) -> tuple[str, str, str]:
        """What a plugin is told of it: namespace, uid, name."""
        return self.namespace, self.uid, self.name


class ClaimCache:
    """Claims by namespace and name, as there is one of a name at a time; `save` makes changes outlive the process."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._claims: dict[tuple[str, str], ClaimInfo] = {}

    def __iter__(self) -> Iterator[ClaimInfo]:
        return iter(list(self._claims.values()))

    def get(self, namespace: str, name: str) -> ClaimInfo | None:
        """Return a claim that is known here."""
        return self._claims.get((namespace, name))

    def add(self, claim: ClaimInfo) -> None:
        """Add a claim."""
        self._claims[claim.namespace, claim.name] = claim

    def remove(self, claim: ClaimInfo) -> None:
        """Forget a claim."""
        self._claims.pop((claim.namespace, claim.name), None)

    def of_pod(self, pod_uid: str) -> list[ClaimInfo]:
        """Return the claims that a pod uses."""
        return [claim for claim in self if pod_uid in claim.pods]

    def save(self) -> None:
        """Write the checkpoint.

        :raises StorageError: it is as it was.
        """
        body = {"version": _VERSION, "claims": [_encode(claim) for claim in self._claims.values()]}
        write_atomic(self._path, json.dumps(body).encode(), durable=False)

    def load(self) -> None:
        """Read the checkpoint; none, or a bad one, is an empty one."""
        self._claims.clear()
        try:
            body = json.loads(self._path.read_bytes())
            if body["version"] == _VERSION:
                for item in body["claims"]:
                    self.add(_decode(item))
        except FileNotFoundError:
            pass
        except (OSError, StorageError, ValueError, KeyError, TypeError) as exc:
            _log.error("checkpoint %s can't be read, claims of earlier pods are not unprepared: %s", self._path, exc)


def _encode(claim: ClaimInfo) -> dict[str, Any]:
    devices = {
        driver: [
            {"requests": d.requests, "pool": d.pool, "name": d.name, "cdi": d.cdi, "share": d.share} for d in found
        ]
        for driver, found in claim.devices.items()
    }
    names = {key: getattr(claim, key) for key in ("uid", "namespace", "name", "drivers")}
    return {**names, "pods": sorted(claim.pods), "devices": devices}


def _decode(item: dict[str, Any]) -> ClaimInfo:
    devices = {
        driver: [
            Device(requests=tuple(d["requests"]), pool=d["pool"], name=d["name"], cdi=tuple(d["cdi"]), share=d["share"])
            for d in found
        ]
        for driver, found in item["devices"].items()
    }
    return ClaimInfo(
        uid=item["uid"], namespace=item["namespace"], name=item["name"], drivers=tuple(item["drivers"]),
        pods=set(item["pods"]), devices=devices,
    )  # fmt: skip
