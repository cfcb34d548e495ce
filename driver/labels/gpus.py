"""Labels of a resource, of whole GPUs, and of the versions around them. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

from driver.labels.options import is_parted, resource_of, sharing_of
from driver.labels.values import GPU, PREFIX, SHARED, label_value, with_suffix
from driver.model.device import UNKNOWN
from driver.model.quantity import MI

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from driver.config.device_plugin import PluginConfig, Replicas
    from driver.labels.options import LabelOptions
    from driver.model.device import Gpu
    from driver.model.snapshot import DriverVersions, Snapshot

# By CUDA compute capability, the newest first.
_FAMILIES = (
    ((14, 0), "undefined"),
    ((13, 0), "rubin"),
    ((10, 0), "blackwell"),
    ((9, 0), "hopper"),
    ((8, 9), "ada-lovelace"),
    ((8, 0), "ampere"),
    ((7, 5), "turing"),
    ((7, 0), "volta"),
    ((6, 0), "pascal"),
    ((5, 0), "maxwell"),
    ((3, 0), "kepler"),
    ((2, 0), "fermi"),
    ((1, 0), "tesla"),
)


def by_product(gpus: Iterable[Gpu]) -> list[tuple[str, tuple[Gpu, ...]]]:
    """Return the products as labels name them, with their GPUs: the most numerous first, then by name."""
    groups: dict[str, list[Gpu]] = {}
    for gpu in gpus:
        groups.setdefault(label_value(gpu.product) or UNKNOWN, []).append(gpu)
    ordered = sorted(groups.items(), key=lambda entry: (-len(entry[1]), entry[0]))
    return [(name, tuple(group)) for name, group in ordered]


def whole_gpus(gpus: Sequence[Gpu], snapshot: Snapshot, options: LabelOptions) -> dict[str, str]:
    """Return the labels of the GPUs of one product. Where all of them are in MIG mode, replicas are 0."""
    config = options.config
    usable = [gpu for gpu in gpus if not is_parted(gpu, snapshot)]
    gpu = (usable or gpus)[0]
    rule = sharing_of(resource_of(gpu.product, config.gpus, "gpu", config), snapshot, config) if usable else None
    return {
        **resource(GPU, (gpu.product,), rule, config, count=len(gpus), unshared=1 if usable else 0),
        **({f"{GPU}.memory": str(gpu.memory // MI)} if gpu.memory else {}),
        **_architecture(gpu.compute_capability),
    }


def resource(
    key: str, product: Sequence[str], rule: Replicas | None, config: PluginConfig, *, count: int, unshared: int = 1
) -> dict[str, str]:
    """Return what is told of every resource; `product` is a product with its suffixes, `rule` how it is shared."""
    suffixes = [label_value(part) for part in product[1:]]
    if rule is not None and rule.offered_as == rule.name:
        suffixes.append(SHARED)
    return {
        f"{key}.product": with_suffix(product[0], "-".join(suffixes), UNKNOWN),
        f"{key}.count": str(count),
        f"{key}.replicas": str(rule.replicas if rule is not None else unshared),
        f"{key}.sharing-strategy": config.sharing.kind if rule is not None else "none",
    }


def versions(found: DriverVersions) -> dict[str, str]:
    """Return the labels of the driver's and CUDA's version; none of what is unknown."""
    return {**_driver(found.driver), **_runtime(found.cuda)}


def _architecture(capability: tuple[int, int]) -> dict[str, str]:
    major, minor = capability
    if major <= 0:
        return {}
    return {
        f"{GPU}.family": next(name for since, name in _FAMILIES if capability >= since),
        f"{GPU}.compute.major": str(major),
        f"{GPU}.compute.minor": str(minor),
    }


def _driver(version: str) -> dict[str, str]:
    if not label_value(version):
        return {}
    major, minor, revision = (label_value(part) for part in [*version.split(".", 2), "", ""][:3])
    return {
        f"{PREFIX}cuda.driver-version.full": label_value(version),
        f"{PREFIX}cuda.driver-version.major": major,
        f"{PREFIX}cuda.driver-version.minor": minor,
        f"{PREFIX}cuda.driver-version.revision": revision,
        f"{PREFIX}cuda.driver.major": major,
        f"{PREFIX}cuda.driver.minor": minor,
        f"{PREFIX}cuda.driver.rev": revision,
    }


def _runtime(version: str) -> dict[str, str]:
    if not label_value(version):
        return {}
    major, minor = (label_value(part) for part in [*version.split(".", 1), ""][:2])
    return {
        f"{PREFIX}cuda.runtime-version.full": label_value(version),
        f"{PREFIX}cuda.runtime-version.major": major,
        f"{PREFIX}cuda.runtime-version.minor": minor,
        f"{PREFIX}cuda.runtime.major": major,
        f"{PREFIX}cuda.runtime.minor": minor,
    }
