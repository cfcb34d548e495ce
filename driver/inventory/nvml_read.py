"""Reading all GPUs from NVML: an unsupported query costs an attribute, a failing one the GPU, never the node."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from driver.errors import InventoryError
from driver.inventory.base import Reading
from driver.inventory.nvml_links import Link, nvlink, read_fabric, read_links
from driver.inventory.nvml_mig import read_mig
from driver.inventory.nvml_query import (
    ABSENT,
    GpuQuery,
    GpuRefusedError,
    ends_session,
    is_one_of,
)
from driver.model import names
from driver.model.device import UNKNOWN, Gpu
from driver.model.snapshot import DriverVersions, Problem
from driver.model.version import cuda_version

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from driver.inventory.sysfs import Sysfs
    from driver.model.mig import MigState

_HOPPER = 9

# As NVIDIA's own tools write them.
_ARCHITECTURES = {
    2: "Kepler",
    3: "Maxwell",
    4: "Pascal",
    5: "Volta",
    6: "Turing",
    7: "Ampere",
    8: "Ada Lovelace",
    9: "Hopper",
    10: "Blackwell",
    13: "Rubin",
}
_BRANDS = {
    1: "Quadro",
    2: "Tesla",
    3: "NVS",
    4: "Grid",
    5: "GeForce",
    6: "Titan",
    7: "NvidiaVApps",
    8: "NvidiaVPC",
    9: "NvidiaVCS",
    10: "NvidiaVWS",
    11: "NvidiaCloudGaming",
    12: "QuadroRTX",
    13: "NvidiaRTX",
    14: "Nvidia",
    15: "GeForceRTX",
    16: "TitanRTX",
}
_ADDRESSING_MODES = {0: "None", 1: "HMM", 2: "ATS"}


@dataclass(frozen=True, slots=True)
class _Facts:
    """What one GPU says; its links are tied to other GPUs once all are known."""

    gpu: Gpu
    links: tuple[Link, ...]
    notes: tuple[str, ...]


def read_gpus(api: Any, sysfs: Sysfs, known: dict[int, str]) -> Reading:
    """Observe all GPUs; `known` remembers UUIDs by NVML index within a session, to name GPUs that no longer answer.

    :raises InventoryError: NVML can't say anything, or its session is over (`__cause__` is the NVMLError).
    """
    try:
        versions = _versions(api)
        count = api.nvmlDeviceGetCount()
    except api.NVMLError as exc:
        raise InventoryError(f"NVML can't count the GPUs: {exc}") from exc
    results = [_read_gpu(api, index, sysfs, known) for index in range(count)]
    facts, twins = _without_twins([one for one in results if isinstance(one, _Facts)])
    notes = [Problem(object=one.gpu.name, message=note) for one in facts for note in one.notes]
    failed = [one for one in results if isinstance(one, Problem)]
    return Reading(versions=versions, gpus=tuple(_linked(facts)), problems=(*failed, *twins, *notes))


def gpu_handles(api: Any) -> dict[str, Any]:
    """Return the handles of the GPUs that answer, by UUID."""
    handles = {}
    for index in range(api.nvmlDeviceGetCount()):
        try:
            handle = api.nvmlDeviceGetHandleByIndex(index)
            handles[api.nvmlDeviceGetUUID(handle)] = handle
        except (api.NVMLError, UnicodeDecodeError):
            continue  # the reading says which, and why
    return handles


def _versions(api: Any) -> DriverVersions:
    cuda = _or_none(api, api.nvmlSystemGetCudaDriverVersion)
    return DriverVersions(
        driver=_or_none(api, api.nvmlSystemGetDriverVersion) or "", cuda=cuda_version(cuda) if cuda else ""
    )


def _or_none(api: Any, function: Callable[[], Any]) -> Any:
    try:
        return function()
    except api.NVMLError as exc:
        if not is_one_of(api, exc, ABSENT):
            raise
    except UnicodeDecodeError:
        pass
    return None


def _read_gpu(api: Any, index: int, sysfs: Sysfs, known: dict[int, str]) -> _Facts | Problem:
    query = GpuQuery(api, None)
    try:
        query.handle = query.call("nvmlDeviceGetHandleByIndex", index)
        known[index] = uuid = query.ask("nvmlDeviceGetUUID")
        gpu = _gpu(query, index, uuid, sysfs)
        links = read_links(query)
        _check_still(query, uuid)
    except api.NVMLError as exc:
        if ends_session(api, exc):
            raise InventoryError(f"NVML ended while GPU {index} was read: {query.asked}: {exc}") from exc
        return _problem(index, known, f"{query.asked}: {exc}")
    except (GpuRefusedError, UnicodeDecodeError) as exc:
        return _problem(index, known, f"{query.asked}: {exc}")
    return _Facts(gpu, links, tuple(query.notes))


def _check_still(query: GpuQuery, uuid: str) -> None:
    if query.ask("nvmlDeviceGetUUID") != uuid:
        raise GpuRefusedError("its UUID changed while it was read")


def _problem(index: int, known: dict[int, str], message: str) -> Problem:
    return Problem(object=known.get(index, f"GPU {index}"), message=f"GPU {index} can't be read: {message}")


def _gpu(query: GpuQuery, index: int, uuid: str, sysfs: Sysfs) -> Gpu:
    architecture = query.ask_or(0, "nvmlDeviceGetArchitecture")
    memory = _memory(query)
    pci = query.ask_or(None, "nvmlDeviceGetPciInfo")
    bus_id = names.pci_bus_id(pci.busId) if pci is not None else None
    return Gpu(
        uuid=uuid,
        index=index,
        minor=query.ask_or(None, "nvmlDeviceGetMinorNumber"),
        product=query.ask_or(UNKNOWN, "nvmlDeviceGetName"),
        brand=_BRANDS.get(query.ask_or(0, "nvmlDeviceGetBrand"), UNKNOWN),
        architecture=_ARCHITECTURES.get(architecture, UNKNOWN),
        compute_capability=query.ask_or((0, 0), "nvmlDeviceGetCudaComputeCapability"),
        memory=memory,
        addressing_mode=_ADDRESSING_MODES.get(query.ask_or(-1, "nvmlDeviceGetAddressingMode"), UNKNOWN),
        pci_bus_id=bus_id,
        pcie_root=sysfs.pcie_root(bus_id) if bus_id else None,
        numa_node=sysfs.numa_node(bus_id) if bus_id else None,
        fabric=read_fabric(query),
        mig=read_mig(query, memory=memory, switches_at_once=_switches_at_once(architecture)),
    )


def mig_of(query: GpuQuery) -> MigState | None:
    """Return one GPU's MIG state and nothing else; None where it has no MIG.

    :raises pynvml.NVMLError: a query failed for real.
    """
    architecture = query.ask_or(0, "nvmlDeviceGetArchitecture")
    return read_mig(query, memory=_memory(query), switches_at_once=_switches_at_once(architecture))


def _switches_at_once(architecture: int) -> bool:
    return architecture in _ARCHITECTURES and architecture >= _HOPPER


def _memory(query: GpuQuery) -> int | None:
    """Return the memory in bytes, asked the new way or the old; some boards know neither (A4)."""
    for version in ((query.api.nvmlMemory_v2,), ()):
        memory = query.ask_or(None, "nvmlDeviceGetMemoryInfo", *version)
        if memory is not None and memory.total:
            return int(memory.total)
    return None


def _without_twins(found: list[_Facts]) -> tuple[list[_Facts], list[Problem]]:
    """Refuse GPUs that claim one UUID or one PCI address: which of them lies can't be known (A11)."""
    identities = Counter(identity for one in found for identity in _identities(one.gpu))
    twins = [one for one in found if any(identities[identity] > 1 for identity in _identities(one.gpu))]
    message = "GPU {} can't be used: another GPU has the same UUID or PCI address"
    problems = [Problem(object=one.gpu.uuid, message=message.format(one.gpu.index)) for one in twins]
    return [one for one in found if one not in twins], problems


def _identities(gpu: Gpu) -> tuple[str, ...]:
    minor = () if gpu.minor is None else (f"minor {gpu.minor}",)
    bus = () if gpu.pci_bus_id is None else (gpu.pci_bus_id,)
    return (gpu.uuid, *minor, *bus)


def _linked(facts: list[_Facts]) -> Iterable[Gpu]:
    uuids = {one.gpu.pci_bus_id: one.gpu.uuid for one in facts if one.gpu.pci_bus_id is not None}
    for one in facts:
        yield replace(one.gpu, nvlink=nvlink(one.links, uuids))
