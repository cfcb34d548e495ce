"""The node labels of GPU feature discovery, from a Snapshot. Pure.

Names and meanings are NVIDIA's, so that people's node selectors run unchanged. What differs, on purpose:

- Every value is a valid label value: at most 63 characters, alphanumeric at both ends (A15). A product is cut so that
  the suffixes, which people select on, stay whole.
- On a node with several products one of them, always the same, stands in `gpu.product` and its companions: the most
  numerous, then the first by name. `gpu.products` tells all, in that order, joined with `_` (no product has one in its
  name). If that is too long, each loses a leading `NVIDIA-`; if it still is, as many whole names as fit are followed by
  `_and-<number>-more`.
- A GPU that is partitioned for claims is labelled as a whole GPU: its partitions come and go with pods.
- A GPU that is lost or unhealthy still counts. `gpu.health` and `gpu.unhealthy`, which are ours, tell of it: `healthy`,
  `degraded` if some GPUs are out of service, `unhealthy` if all are; and how many.
- Sharing counts only on nodes where the device-plugin API has, or is to have, a GPU.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from driver.labels.gpus import by_product, versions, whole_gpus
from driver.labels.mig import mig_labels
from driver.labels.options import UNKNOWN_MACHINE, UNKNOWN_MODE, LabelOptions, is_mps
from driver.labels.values import GPU, PREFIX, flag, joined, label_value

if TYPE_CHECKING:
    from collections.abc import Iterable

    from driver.model.device import Gpu
    from driver.model.snapshot import Snapshot

__all__ = ["PREFIX", "TIMESTAMP", "LabelOptions", "label_value", "labels"]

TIMESTAMP = f"{PREFIX}gfd.timestamp"
"""When labels last changed, in seconds since 1970. It is the writer's: no fact about GPUs."""

# NVML's brands of virtual GPUs, as the inventory names them.
_VIRTUAL = ("NvidiaVApps", "NvidiaVPC", "NvidiaVCS", "NvidiaVWS", "NvidiaCloudGaming")


def labels(snapshot: Snapshot, options: LabelOptions) -> dict[str, str]:
    """Return the labels of a node, by key in order; none if it has no GPU."""
    if not snapshot.gpus:
        return {}
    _, chosen = by_product(snapshot.gpus)[0]
    found = {
        **whole_gpus(chosen, snapshot, options),
        **_node(snapshot, options),
        f"{GPU}.mode": options.modes.get(chosen[0].uuid, UNKNOWN_MODE),
        **versions(snapshot.versions),
        **mig_labels(snapshot, options),
    }
    return dict(sorted(found.items()))


def _node(snapshot: Snapshot, options: LabelOptions) -> dict[str, str]:
    gpus = snapshot.gpus
    return {
        f"{GPU}.products": joined([name for name, _ in by_product(gpus)]),
        f"{GPU}.machine": label_value(options.machine) or UNKNOWN_MACHINE,
        f"{PREFIX}mig.capable": flag(any(gpu.mig is not None for gpu in gpus)),
        f"{PREFIX}mps.capable": flag(is_mps(snapshot, options.config)),
        **_virtual(gpus, options),
        **_clique(gpus),
        **_health(snapshot),
    }


def _health(snapshot: Snapshot) -> dict[str, str]:
    bad = sum(not snapshot.health_of(gpu.uuid).healthy for gpu in snapshot.gpus)
    word = "healthy" if not bad else "degraded" if bad < len(snapshot.gpus) else "unhealthy"
    return {f"{GPU}.health": word, f"{GPU}.unhealthy": str(bad)}


def _virtual(gpus: Iterable[Gpu], options: LabelOptions) -> dict[str, str]:
    """Return whether GPUs are virtual, and the hypervisor's driver as far as it is known."""
    host = options.host_driver
    present = host is not None or any(gpu.brand in _VIRTUAL for gpu in gpus)
    known = {"version": label_value(host.version), "branch": label_value(host.branch)} if host is not None else {}
    found = {f"{PREFIX}vgpu.host-driver-{name}": value for name, value in known.items() if value}
    return {f"{PREFIX}vgpu.present": flag(present), **found}


def _clique(gpus: Iterable[Gpu]) -> dict[str, str]:
    """Return the fabric that the GPUs are in, if all that are in one are in the same (A16: never an all-zero one)."""
    fabrics = {gpu.fabric for gpu in gpus if gpu.fabric is not None}
    values = {label_value(f"{fabric.cluster_uuid}.{fabric.clique}") for fabric in fabrics}
    return {f"{GPU}.clique": value for value in values if value} if len(values) == 1 else {}
