"""What was seen in one look at the GPUs. Pure."""

from __future__ import annotations

from dataclasses import dataclass, field
from types import MappingProxyType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

    from driver.model.holder import Holder
    from driver.model.usage import GpuUsage


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """The use by GPU, and who holds what by the UUID of the GPU or MIG device; `time` in seconds of some clock."""

    time: float = 0.0
    usage: Mapping[str, GpuUsage] = field(default_factory=lambda: MappingProxyType({}))
    holders: Mapping[str, tuple[Holder, ...]] = field(default_factory=lambda: MappingProxyType({}))
