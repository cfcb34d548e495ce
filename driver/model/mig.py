"""MIG: profiles, placements and live devices, as a GPU reports them.

Memory and engines per profile move with the driver version, so they are data of each GPU, never a table here.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, order=True)
class Placement:
    """The memory slices `start … start + size - 1` of a GPU."""

    start: int
    size: int

    @property
    def slices(self) -> range:
        """The indices of the memory slices."""
        return range(self.start, self.start + self.size)

    def overlaps(self, other: Placement) -> bool:
        """Say whether two placements share a memory slice."""
        return self.start < other.start + other.size and other.start < self.start + self.size

    def __str__(self) -> str:
        """Write it as `nvidia-smi mig` does, `start:size`."""
        return f"{self.start}:{self.size}"


@dataclass(frozen=True, slots=True, kw_only=True)
class MigProfile:
    """A GPU instance profile that a GPU offers; `memory` in bytes."""

    name: str  # 1g.10gb, 1g.10gb+me
    id: int  # GPU instance profile id, as nvidia-smi shows it (19)
    index: int  # NVML's profile index, the argument of its calls (0)
    compute_slices: int
    max_instances: int
    placements: tuple[Placement, ...]
    memory: int
    multiprocessors: int
    copy_engines: int
    decoders: int
    encoders: int
    jpeg_engines: int
    ofa_engines: int


@dataclass(frozen=True, slots=True, kw_only=True)
class MigInstance:
    """A MIG device that exists on a GPU: one compute instance of a GPU instance. Its UUID is new at each creation."""

    uuid: str
    gpu_instance_id: int
    compute_instance_id: int
    profile: MigProfile
    placement: Placement
    compute_slices: int  # of the compute instance; fewer than the profile's where a GPU instance is cut further

    @property
    def name(self) -> str:
        """The profile's name as NVML writes it: `1c.3g.40gb` where the compute instance is only a part."""
        if self.compute_slices == self.profile.compute_slices:
            return self.profile.name
        return f"{self.compute_slices}c.{self.profile.name}"


@dataclass(frozen=True, slots=True, kw_only=True)
class MigState:
    """What a MIG-capable GPU says about MIG."""

    enabled: bool
    pending: bool  # the mode after the next reset
    switches_at_once: bool  # Hopper and later: no reset needed to change the mode
    memory_slices: int
    profiles: tuple[MigProfile, ...] = ()
    instances: tuple[MigInstance, ...] = ()
    bare: tuple[Placement, ...] = ()  # taken by GPU instances without a compute instance: no devices, but in the way


def profile_name(memory: int, total: int, compute_slices: int, attributes: tuple[str, ...] = ()) -> str:
    """Name a profile as NVIDIA's tools do; `memory` and `total` in MiB.

    gb = floor(ceil(8·mig/total)/8 · ceil(total in GiB) + 0.5); Python's `round` would be wrong at .5.
    """
    eighths = -(-8 * memory // total)
    gib = -(-total // 1024)
    gigabytes = (eighths * gib + 4) // 8
    return "+".join((f"{compute_slices}g.{gigabytes}gb", *attributes))
