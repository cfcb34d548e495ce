"""Device metadata for containers: what KEP-5304 wants in which file. Pure.

One file per request of a claim, mounted into the containers that use it: a stream of the same `DeviceMetadata` in each
version of its API, the newest first, so that a program takes the first that it understands.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Final

from driver.model import names
from driver.model.topology import nvlink_domains
from driver.slices.devices import Node, render

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from driver.claims.record import Record, RecordedDevice
    from driver.model.device import Device
    from driver.model.json_object import JsonObject
    from driver.model.snapshot import Snapshot

DIRECTORY: Final = "/var/run/kubernetes.io/dra-device-attributes"
"""Where containers find the files."""

VERSIONS: Final = ("metadata.resource.k8s.io/v1beta1", "metadata.resource.k8s.io/v1alpha1")


def container_path(record: Record, request: str) -> str:
    """Return where a container finds a request's file; a claim made of a template goes by its name in the pod."""
    made = record.pod_claim
    claim = f"resourceclaimtemplates/{made}" if made else f"resourceclaims/{record.claim.name}"
    return f"{DIRECTORY}/{claim}/{request}/{names.DRIVER}-metadata.json"


def documents(record: Record, devices: Mapping[int, Device], snapshot: Snapshot, generation: int) -> dict[str, bytes]:
    """Return the files' contents by request, without a subrequest; `devices` by their place in the record."""
    node = Node(versions=snapshot.versions, domains=nvlink_domains(snapshot.gpus))
    requests: dict[str, list[tuple[RecordedDevice, Device]]] = {}
    for place, recorded in enumerate(record.devices):
        requests.setdefault(recorded.request, []).append((recorded, devices[place]))
    found: dict[str, bytes] = {}
    for request, members in requests.items():
        shown = [_device(recorded, device, node) for recorded, device in members]
        found[request.partition("/")[0]] = _stream(record, request, shown, generation)
    return found


def generation_of(data: bytes) -> int:
    """Return the generation of a file's content; 0 if it is none of ours."""
    try:
        first, _ = json.JSONDecoder().raw_decode(data.decode())
        generation = first["metadata"]["generation"]
    except (ValueError, LookupError, TypeError):
        return 0
    return generation if isinstance(generation, int) and generation > 0 else 0


def _device(recorded: RecordedDevice, device: Device, node: Node) -> JsonObject:
    return {
        "driver": names.DRIVER,
        "pool": recorded.pool,
        "name": recorded.holding.device,
        "attributes": render(device, node)["attributes"],
    }


def _stream(record: Record, request: str, devices: Iterable[JsonObject], generation: int) -> bytes:
    claim = record.claim
    metadata = {"name": claim.name, "namespace": claim.namespace, "uid": claim.uid, "generation": generation}
    body: JsonObject = {"metadata": metadata}
    if record.pod_claim:
        body["podClaimName"] = record.pod_claim
    body["requests"] = [{"name": request, "devices": [*devices]}]
    lines = [json.dumps({"kind": "DeviceMetadata", "apiVersion": version, **body}) for version in VERSIONS]
    return "".join(f"{line}\n" for line in lines).encode()
