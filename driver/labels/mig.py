"""Labels of MIG devices, by the strategies of NVIDIA's device plugin. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from driver.labels.gpus import by_product, resource
from driver.labels.options import is_parted, is_plugins, resource_of, sharing_of
from driver.labels.values import GPU, MAX, MIG_INVALID, PREFIX, label_value, with_suffix
from driver.model.device import UNKNOWN
from driver.model.quantity import MI

if TYPE_CHECKING:
    from collections.abc import Iterable

    from driver.labels.options import LabelOptions
    from driver.model.device import Gpu
    from driver.model.mig import MigInstance
    from driver.model.snapshot import Snapshot


@dataclass(frozen=True, slots=True)
class _Slice:
    """A MIG device with its GPU."""

    gpu: Gpu
    instance: MigInstance


def mig_labels(snapshot: Snapshot, options: LabelOptions) -> dict[str, str]:
    """Return what the MIG strategy adds, or puts in the place of whole GPUs' labels."""
    strategy = options.config.flags.mig_strategy
    if strategy == "none":
        return {}
    found = _single(snapshot, options) if strategy == "single" else _mixed(snapshot, options)
    return {f"{PREFIX}mig.strategy": strategy, **found}


def _mixed(snapshot: Snapshot, options: LabelOptions) -> dict[str, str]:
    found: dict[str, str] = {}
    for slices in _by_profile(snapshot.gpus, snapshot).values():
        name = f"mig-{_plain(slices[0].instance)}"  # as the resource
        key = label_value(name)
        if len(f"{key}.sharing-strategy") <= MAX:  # always so with real profiles
            found |= _slices(f"{PREFIX}{key}", name, slices, snapshot, options)
    return found


def _single(snapshot: Snapshot, options: LabelOptions) -> dict[str, str]:
    """Label MIG devices as GPUs: those of the device-plugin API if it has any, as the strategy is its own."""
    gpus = [gpu for gpu in snapshot.gpus if is_plugins(gpu, snapshot)] or list(snapshot.gpus)
    parted = [gpu for gpu in gpus if is_parted(gpu, snapshot)]
    if not parted:
        return {}
    profiles = _by_profile(parted, snapshot)
    has_empty = any(not gpu.mig.instances for gpu in parted if gpu.mig is not None)
    if not has_empty and len(parted) == len(gpus) and len(profiles) == 1:
        return _slices(GPU, "gpu", next(iter(profiles.values())), snapshot, options)
    product = by_product(parted)[0][0]
    return {
        f"{GPU}.product": with_suffix(product, MIG_INVALID, UNKNOWN),
        **{f"{GPU}.{name}": "0" for name in ("count", "replicas", "memory")},
        f"{GPU}.sharing-strategy": "none",
    }


def _by_profile(gpus: Iterable[Gpu], snapshot: Snapshot) -> dict[str, list[_Slice]]:
    found: dict[str, list[_Slice]] = {}
    for gpu in gpus:
        if gpu.mig is not None and is_parted(gpu, snapshot):
            for instance in gpu.mig.instances:
                found.setdefault(instance.name, []).append(_Slice(gpu, instance))
    return dict(sorted(found.items()))


def _slices(key: str, default: str, slices: list[_Slice], snapshot: Snapshot, options: LabelOptions) -> dict[str, str]:
    """Label the MIG devices of one profile; of several products' the one that has most of them."""
    config = options.config
    product, _ = by_product(one.gpu for one in slices)[0]
    instance = next(one.instance for one in slices if (label_value(one.gpu.product) or UNKNOWN) == product)
    rule = sharing_of(resource_of(instance.name, config.mig, default, config), snapshot, config)
    return {
        **resource(key, (product, f"MIG-{_plain(instance)}"), rule, config, count=len(slices)),
        **{f"{key}.{name}": str(value) for name, value in _attributes(instance).items()},
    }


def _plain(instance: MigInstance) -> str:
    """Return the profile as labels and resources name it, where no `+` may stand: `1g.10gb.me`."""
    return instance.name.replace("+", ".")


def _attributes(instance: MigInstance) -> dict[str, int]:
    """Return a MIG device's sizes. Memory and engines are its GPU instance's, whose parts share them."""
    profile = instance.profile
    return {
        "memory": profile.memory // MI,
        "multiprocessors": profile.multiprocessors * instance.compute_slices // max(profile.compute_slices, 1),
        "slices.gi": profile.compute_slices,
        "slices.ci": instance.compute_slices,
        "engines.copy": profile.copy_engines,
        "engines.decoder": profile.decoders,
        "engines.encoder": profile.encoders,
        "engines.jpeg": profile.jpeg_engines,
        "engines.ofa": profile.ofa_engines,
    }
