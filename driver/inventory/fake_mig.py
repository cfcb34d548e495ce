"""What a fake GPU does when MIG is changed: GPU instances, compute instances, new UUIDs, refusals. Pure."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from driver.errors import MigError
from driver.inventory.fake_gpus import gpu_instance_id, mig_uuid
from driver.inventory.mig_rules import check_creation, check_mode
from driver.model.mig import MigInstance

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from driver.model.mig import MigProfile, MigState, Placement

_RESOURCES = (
    "compute_slices",
    "multiprocessors",
    "copy_engines",
    "decoders",
    "encoders",
    "jpeg_engines",
    "ofa_engines",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class ComputeInstance:
    """A compute instance, which is a MIG device."""

    id: int
    slices: int
    uuid: str


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuInstance:
    """A GPU instance, with compute instances or bare."""

    id: int
    profile: MigProfile
    placement: Placement
    compute: tuple[ComputeInstance, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Board:
    """A fake MIG-capable GPU. `facts` is what it is at boot; `generation` counts the compute instances ever made."""

    uuid: str
    facts: MigState
    enabled: bool
    instances: tuple[GpuInstance, ...]
    generation: int = 0

    @classmethod
    def at_boot(cls, uuid: str, facts: MigState, generation: int = 0) -> Board:
        """Return the GPU as its specification says."""
        parents = {one.gpu_instance_id: one for one in facts.instances}
        instances = tuple(
            GpuInstance(
                id=number,
                profile=one.profile,
                placement=one.placement,
                compute=tuple(
                    ComputeInstance(id=other.compute_instance_id, slices=other.compute_slices, uuid=other.uuid)
                    for other in facts.instances
                    if other.gpu_instance_id == number
                ),
            )
            for number, one in parents.items()
        )
        return cls(uuid=uuid, facts=facts, enabled=facts.enabled, instances=instances, generation=generation)

    def state(self) -> MigState:
        """Return what NVML would say about it."""
        return replace(
            self.facts,
            enabled=self.enabled,
            pending=self.enabled,
            instances=tuple(self._devices()),
            bare=tuple(one.placement for one in self.instances if not one.compute),
        )

    def device(self, placement: Placement) -> MigInstance:
        """Return the MIG device at a placement; there must be one."""
        return next(one for one in self._devices() if one.placement == placement)

    def with_gpu_instance(self, profile_id: int, placement: Placement) -> Board:
        """Add a bare GPU instance.

        :raises MigError: as `check_creation`, and if engines don't suffice.
        """
        profile = check_creation(self.uuid, self.state(), profile_id, placement)
        _check_resources(self, profile)
        number = gpu_instance_id(self.facts.memory_slices, placement.start, placement.size)
        made = GpuInstance(id=number, profile=profile, placement=placement)
        return replace(self, instances=(*self.instances, made))

    def with_compute_instance(self, placement: Placement) -> Board:
        """Fill the bare GPU instance at a placement with one compute instance, whose UUID is new.

        :raises MigError: there is none: somebody else removed or filled it.
        """
        parent = next((one for one in self.instances if one.placement == placement and not one.compute), None)
        if parent is None:
            raise MigError(f"{self.uuid}: the GPU instance at {placement} was removed or filled by somebody else")
        generation = self.generation + 1
        identity = mig_uuid(self.uuid, generation, parent.id, 0)
        made = ComputeInstance(id=0, slices=parent.profile.compute_slices, uuid=identity)
        filled = replace(parent, compute=(made,))
        instances = tuple(filled if one is parent else one for one in self.instances)
        return replace(self, instances=instances, generation=generation)

    def without(self, placement: Placement) -> Board:
        """Remove the GPU instance at exactly this placement, if there is one, and all in it."""
        return replace(self, instances=tuple(one for one in self.instances if one.placement != placement))

    def with_mode(self, enabled: bool) -> Board:
        """Switch MIG mode.

        :raises MigError: as `check_mode`.
        """
        return replace(self, enabled=enabled) if check_mode(self.uuid, self.state(), enabled) else self

    def _devices(self) -> Iterator[MigInstance]:
        for parent in self.instances:
            for one in parent.compute:
                yield MigInstance(
                    uuid=one.uuid,
                    gpu_instance_id=parent.id,
                    compute_instance_id=one.id,
                    profile=parent.profile,
                    placement=parent.placement,
                    compute_slices=one.slices,
                )


def _check_resources(board: Board, profile: MigProfile) -> None:
    """Refuse what a GPU has no engines for, though the memory slices are free: a second `+me`, say."""
    present = [one.profile for one in board.instances]
    if sum(one.id == profile.id for one in present) >= profile.max_instances:
        raise MigError(f"{board.uuid}: at most {profile.max_instances} of {profile.name} fit, and they are there")
    whole = _whole(board.facts)
    for resource in _RESOURCES if whole else ():
        if _total(resource, (*present, profile)) > getattr(whole, resource):
            raise MigError(f"{board.uuid}: insufficient resources for {profile.name}: no {resource} left")


def _whole(facts: MigState) -> MigProfile | None:
    """Return the profile that takes the whole GPU: it has all the engines there are."""
    sizes = ((one, one.placements[0].size) for one in facts.profiles)
    return next((one for one, size in sizes if size == facts.memory_slices), None)


def _total(resource: str, profiles: Iterable[MigProfile]) -> int:
    return sum(getattr(one, resource) for one in profiles)
