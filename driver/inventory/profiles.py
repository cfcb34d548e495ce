"""Product profiles: what a GPU of a product answers, as YAML files. The fake GPUs are made of them, and nothing else.

One file per product, `<name>.yaml`; `name` is what `--gpus` takes (`h100`). Users add their own in a directory, where a
file of a known name replaces the shipped one. A profile that can't be true is refused: a placement beyond the memory
slices, a partition larger than the GPU, a name that NVIDIA's tools would not give.
"""

from __future__ import annotations

import enum
import re
import uuid
from dataclasses import dataclass
from functools import cache
from importlib import resources
from itertools import pairwise
from typing import TYPE_CHECKING

from driver.errors import InvalidValueError
from driver.model.decode import Fields, integer, suggestion
from driver.model.mig import MigProfile, Placement, profile_name
from driver.model.names import is_dns_label
from driver.model.quantity import MI
from driver.yaml_file import load_yaml, read_text

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping
    from importlib.resources.abc import Traversable
    from pathlib import Path

_VERSION = re.compile(r"\d{1,3}\.\d{1,2}", re.ASCII)
_DRIVER_VERSION = re.compile(r"\d+(\.\d+){1,3}", re.ASCII)
_PCI_ID = re.compile(r"[0-9A-F]{4}")
_MAX_MIB = 1 << 24
_MAX_UNITS = 4096  # engines and multiprocessors: far above any GPU, far below a mistake in units


class Wiring(enum.StrEnum):
    """How a product's NVLinks end."""

    NONE = "none"
    BRIDGE = "bridge"  # at one other GPU, in pairs
    NVSWITCH = "nvswitch"  # at switches that connect all GPUs of the node


@dataclass(frozen=True, slots=True, kw_only=True)
class FabricReport:
    """What NVML says about the multi-node fabric, an all-zero UUID included (A16)."""

    state: str  # completed, in_progress, not_started
    cluster_uuid: str
    clique: int


@dataclass(frozen=True, slots=True, kw_only=True)
class MigSupport:
    """What a MIG-capable product offers."""

    memory_slices: int
    switches_at_once: bool  # Hopper and later; Ampere needs a reset
    profiles: tuple[MigProfile, ...]

    def profile(self, name: str) -> MigProfile | None:
        """Find a profile by its exact name: `1g.24gb` is not `1g.24gb+me` (M5)."""
        return next((one for one in self.profiles if one.name == name), None)


@dataclass(frozen=True, slots=True, kw_only=True)
class Product:
    """A GPU product; `memory` in bytes."""

    name: str
    nvml_name: str
    brand: str
    architecture: str
    compute_capability: tuple[int, int]
    memory: int
    pci_device_id: int
    multiprocessors: int
    nvlinks: int
    wiring: Wiring
    addressing_mode: str  # HMM, ATS or None
    fabric: FabricReport | None
    driver_version: str
    cuda_version: str
    mig: MigSupport | None


def load_products(directory: Path | None = None, source: str = "profiles_dir") -> dict[str, Product]:
    """Return all products by name: the shipped ones, and those of `directory`, which win. `source` said which that is.

    :raises InvalidValueError: naming file and field of the first bad profile.
    """
    return {**_shipped(), **(_load_directory(directory, source) if directory else {})}


def load_profile(file: Path | Traversable) -> Product:
    """Read one profile file.

    :raises InvalidValueError: naming file and field.
    """
    product = decode_product(load_yaml(read_text(file), str(file)), str(file))
    if f"{product.name}.yaml" != file.name:
        raise InvalidValueError(f"{file}: name", product.name, "must be the file's name without .yaml")
    return product


def find_product(products: Mapping[str, Product], name: str, path: str) -> Product:
    """Look up a product.

    :raises InvalidValueError: naming the nearest product and all known ones.
    """
    if name in products:
        return products[name]
    raise InvalidValueError(path, name, f"no such product; {suggestion(name, products)}")


@cache
def _shipped() -> Mapping[str, Product]:
    directory = resources.files("driver.inventory") / "profiles"
    return _load_all(file for file in directory.iterdir() if file.name.endswith(".yaml"))


def _load_directory(directory: Path, source: str) -> Mapping[str, Product]:
    if not directory.is_dir():
        raise InvalidValueError(source, str(directory), "must be a directory with <product>.yaml files")
    return _load_all(directory.glob("*.yaml"))


def _load_all(files: Iterable[Path] | Iterable[Traversable]) -> Mapping[str, Product]:
    ordered = sorted(files, key=lambda file: file.name)
    return {product.name: product for product in map(load_profile, ordered)}


def decode_product(value: object, path: str) -> Product:
    """Decode a profile strictly. Pure.

    :raises InvalidValueError: naming `path` (a file) and field.
    """
    fields = Fields(value, path, separator=": ")
    links, wiring = _nvlink(fields.mapping("nvlink"))
    memory_mib = fields.integer("memory_mib", 1, _MAX_MIB)
    multiprocessors = fields.integer("multiprocessors", 1, _MAX_UNITS)
    product = Product(
        name=_matched(fields, "name", is_dns_label, "must be lower-case letters, digits and '-'"),
        nvml_name=_matched(fields, "nvml_name", lambda text: len(text) <= 95, "at most 95 characters, as in NVML"),
        brand=fields.text("brand"),
        architecture=fields.text("architecture"),
        compute_capability=_capability(fields),
        memory=memory_mib * MI,
        pci_device_id=int(_matched(fields, "pci_device_id", _PCI_ID.fullmatch, "four upper-case hex digits"), 16),
        multiprocessors=multiprocessors,
        nvlinks=links,
        wiring=wiring,
        addressing_mode=fields.choice("addressing_mode", ("HMM", "ATS", "None")),
        fabric=_fabric(fields),
        driver_version=_matched(fields, "driver_version", _DRIVER_VERSION.fullmatch, "numbers such as 580.105.08"),
        cuda_version=_matched(fields, "cuda_version", _VERSION.fullmatch, "two numbers such as 13.0"),
        mig=_mig(fields, memory_mib, multiprocessors),
    )
    fields.done()
    return product


def _matched(fields: Fields, key: str, check: Callable[[str], object], allowed: str) -> str:
    value = fields.text(key)
    if not check(value):
        raise InvalidValueError(fields.at(key), value, allowed)
    return value


def _capability(fields: Fields) -> tuple[int, int]:
    major, minor = _matched(fields, "compute_capability", _VERSION.fullmatch, 'such as "9.0"').split(".")
    return int(major), int(minor)


def _nvlink(fields: Fields) -> tuple[int, Wiring]:
    links = fields.integer("links", 0, 64)
    wiring = Wiring(fields.choice("wiring", tuple(Wiring)))
    if (links == 0) != (wiring is Wiring.NONE):
        raise InvalidValueError(fields.at("wiring"), str(wiring), f"does not go with {links} links")
    fields.done()
    return links, wiring


def _fabric(parent: Fields) -> FabricReport | None:
    value = parent.take("fabric")
    if value is None:
        return None
    fields = Fields(value, parent.at("fabric"))
    report = FabricReport(
        state=fields.choice("state", ("completed", "in_progress", "not_started")),
        cluster_uuid=_matched(fields, "cluster_uuid", _is_uuid, "a UUID in lower case"),
        clique=fields.integer("clique", 0, 0xFFFFFFFF),
    )
    fields.done()
    return report


def _is_uuid(text: str) -> bool:
    try:
        return str(uuid.UUID(text)) == text
    except ValueError:
        return False


def _mig(parent: Fields, memory_mib: int, multiprocessors: int) -> MigSupport | None:
    value = parent.take("mig")
    if value is None:
        return None
    fields = Fields(value, parent.at("mig"))
    slices = fields.integer("memory_slices", 1, 64)
    mode_change = fields.choice("mode_change", ("at_once", "reset"))
    decoded = [
        (_profile(Fields(one, at), slices, multiprocessors, memory_mib), at) for one, at in fields.items("profiles")
    ]
    fields.done()
    for attribute in ("name", "id", "index"):
        _refuse_duplicates(decoded, attribute)
    profiles = tuple(profile for profile, _ in decoded)
    return MigSupport(memory_slices=slices, switches_at_once=mode_change == "at_once", profiles=profiles)


def _profile(fields: Fields, slices: int, multiprocessors: int, gpu_mib: int) -> MigProfile:
    memory_mib = fields.integer("memory_mib", 1, gpu_mib)
    compute_slices = fields.integer("compute_slices", 1, slices)
    placements = _placements(fields, slices)
    profile = MigProfile(
        name=_profile_name(fields, memory_mib, gpu_mib, compute_slices),
        id=fields.integer("id", 0, 0xFFFF),
        index=fields.integer("index", 0, 63),
        compute_slices=compute_slices,
        max_instances=fields.integer("max_instances", 1, len(placements)),
        placements=placements,
        memory=memory_mib * MI,
        multiprocessors=fields.integer("multiprocessors", 1, multiprocessors),
        copy_engines=fields.integer("copy_engines", 0, _MAX_UNITS),
        decoders=fields.integer("decoders", 0, _MAX_UNITS),
        encoders=fields.integer("encoders", 0, _MAX_UNITS),
        jpeg_engines=fields.integer("jpeg_engines", 0, _MAX_UNITS),
        ofa_engines=fields.integer("ofa_engines", 0, _MAX_UNITS),
    )
    fields.done()
    return profile


def _profile_name(fields: Fields, memory_mib: int, gpu_mib: int, compute_slices: int) -> str:
    name = fields.text("name")
    expected = profile_name(memory_mib, gpu_mib, compute_slices, tuple(name.split("+")[1:]))
    if name != expected:
        raise InvalidValueError(fields.at("name"), name, f"these sizes are named {expected!r}")
    return name


def _placements(fields: Fields, slices: int) -> tuple[Placement, ...]:
    size = fields.integer("size", 1, slices)
    starts = [integer(start, at, 0, slices - size) for start, at in fields.items("starts")]
    if not starts or any(left >= right for left, right in pairwise(starts)):
        raise InvalidValueError(fields.at("starts"), starts, "at least one start, ascending, each once")
    return tuple(Placement(start, size) for start in starts)


def _refuse_duplicates(decoded: Iterable[tuple[MigProfile, str]], attribute: str) -> None:
    seen: dict[object, str] = {}
    for profile, at in decoded:
        value = getattr(profile, attribute)
        if value in seen:
            raise InvalidValueError(f"{at}.{attribute}", value, f"{seen[value]} has the same {attribute}")
        seen[value] = at
