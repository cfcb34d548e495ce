"""Effects: what preparing a claim changes on the node beyond files, and what it takes to change it back. Pure.

An effect is planned, then recorded with what was found before, then done, then recorded with what was made. Undoing is
safe whether it was done or not. Several claims may want the same of one GPU (shares): the first records what was found,
the others copy it, and the last one restores it.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, fields, replace
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final

from driver.config.parameters import Mps
from driver.errors import RecordError
from driver.model.mig import Placement

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

Key = tuple[str, ...]
"""What an effect is about; of one key only one wish can hold at a time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MigMode:
    """MIG mode of a GPU. `found` is None until it was observed."""

    gpu: str
    enabled: bool
    found: bool | None = None

    @property
    def key(self) -> Key:
        """The GPU's MIG mode."""
        return "MigMode", self.gpu

    @property
    def wish(self) -> object:
        """What is wanted."""
        return self.enabled


@dataclass(frozen=True, slots=True, kw_only=True)
class Partition:
    """A MIG device made for a claim. `uuid` and the instance ids are there once it is made."""

    gpu: str
    device: str
    profile_id: int
    placement: Placement
    uuid: str = ""
    gpu_instance_id: int = -1
    compute_instance_id: int = -1

    @property
    def key(self) -> Key:
        """The GPU's memory slices."""
        return "Partition", self.gpu, str(self.placement.start), str(self.placement.size)

    @property
    def wish(self) -> object:
        """What is wanted."""
        return self.profile_id


@dataclass(frozen=True, slots=True, kw_only=True)
class ComputeMode:
    """Who may use a GPU: `DEFAULT`, `EXCLUSIVE_PROCESS`."""

    gpu: str
    mode: str
    found: str | None = None

    @property
    def key(self) -> Key:
        """The GPU's compute mode."""
        return "ComputeMode", self.gpu

    @property
    def wish(self) -> object:
        """What is wanted."""
        return self.mode


@dataclass(frozen=True, slots=True, kw_only=True)
class TimeSlice:
    """How long a process keeps a GPU: level 0 (default) to 3 (long), as `nvidia-smi compute-policy` has it."""

    gpu: str
    level: int
    found: int | None = None

    @property
    def key(self) -> Key:
        """The GPU's time slice."""
        return "TimeSlice", self.gpu

    @property
    def wish(self) -> object:
        """What is wanted."""
        return self.level


@dataclass(frozen=True, slots=True, kw_only=True)
class MpsDaemon:
    """An MPS control daemon for devices of a claim, or for all shares of one GPU.

    `devices` are device names in the claim's order, `uuids` what CUDA knows them by (empty until a partition is made).
    """

    id: str
    gpus: tuple[str, ...]
    devices: tuple[str, ...]
    uuids: tuple[str, ...]
    settings: Mps

    @property
    def key(self) -> Key:
        """The daemon."""
        return "MpsDaemon", self.id

    @property
    def wish(self) -> object:
        """What is wanted."""
        return self.settings


Effect = MigMode | Partition | ComputeMode | TimeSlice | MpsDaemon

_KINDS: Final[Mapping[str, Any]] = {
    kind.__name__: kind for kind in (MigMode, Partition, ComputeMode, TimeSlice, MpsDaemon)
}


def gpus_of(effects: Iterable[Effect]) -> tuple[str, ...]:
    """Return the UUIDs of the GPUs that effects touch, sorted: the order in which they are locked."""
    touched = {gpu for effect in effects for gpu in (effect.gpus if isinstance(effect, MpsDaemon) else (effect.gpu,))}
    return tuple(sorted(touched))


def is_found(effect: Effect) -> bool:
    """Say whether undoing it would know what to restore."""
    return not isinstance(effect, MigMode | ComputeMode | TimeSlice) or effect.found is not None


def with_found(effect: Effect, found: object) -> Effect:
    """Return the effect with what was there before."""
    if isinstance(effect, MigMode | ComputeMode | TimeSlice):
        return replace(effect, found=found)  # type: ignore[arg-type]  # the observer's type is the effect's
    return effect


def encode(effect: Effect) -> dict[str, Any]:
    """Return the JSON form."""
    values = {one.name: getattr(effect, one.name) for one in fields(effect)}
    if isinstance(effect, Partition):
        values["placement"] = asdict(effect.placement)
    if isinstance(effect, MpsDaemon):
        settings = effect.settings
        values["settings"] = {one.name: getattr(settings, one.name) for one in fields(settings)}
        values["settings"]["memory_limit_by_device"] = dict(settings.memory_limit_by_device)
    return {"kind": type(effect).__name__, **values}


def decode(item: Mapping[str, Any]) -> Effect:
    """Return an effect from its JSON form; fields of a newer version are dropped.

    :raises RecordError: it is of a kind that this version does not know, or malformed.
    """
    kind = _KINDS.get(str(item.get("kind")))
    if kind is None:
        raise RecordError(f"it has an effect of unknown kind {item.get('kind')!r}: upgrade the driver")
    known = {one.name for one in fields(kind)}
    values = {name: _frozen(value) for name, value in item.items() if name in known}
    try:
        if kind is Partition:
            values["placement"] = Placement(**item["placement"])
        if kind is MpsDaemon:
            values["settings"] = _settings(item["settings"])
        made: Effect = kind(**values)
        hash(made.key)  # other claims' effects are looked up by it
    except (TypeError, LookupError) as exc:
        raise RecordError(f"it has a malformed effect {kind.__name__}: {exc}") from exc
    return made


def _settings(item: Mapping[str, Any]) -> Mps:
    known = {one.name for one in fields(Mps)}
    return Mps(**{name: _frozen(value) for name, value in item.items() if name in known})


def _frozen(value: Any) -> Any:
    if isinstance(value, list):
        return tuple(value)
    return MappingProxyType(value) if isinstance(value, dict) else value
