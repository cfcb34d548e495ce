"""In whatever order things are asked for, first fit on the driver's slices hands out what the hardware can make."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hypothesis import given, settings
from hypothesis import strategies as st

from driver.model.device import MigPartition
from driver.slices.build import build
from tests.examples import examples
from tests.unit.slices.helpers import PARTITIONS, partitioned
from tests.unit.slices.scheduling import WHOLE, Cluster, wanted

if TYPE_CHECKING:
    from driver.model.mig import Placement

KINDS = ["gpu", "1g.10gb", "1g.10gb+me", "1g.20gb", "2g.20gb", "3g.40gb", "4g.40gb", "7g.80gb"]


@given(st.lists(st.sampled_from(KINDS), max_size=20))
@settings(max_examples=examples(25))
def test_no_two_allocated_partitions_ever_overlap(kinds: list[str]) -> None:
    cluster = Cluster(build(partitioned("h100:2"), PARTITIONS))
    known = {device.name: device for device in partitioned("h100:2").devices()}
    held: dict[str, list[tuple[str, Placement | None]]] = {}
    for kind in kinds:
        for result in cluster.allocate(WHOLE if kind == "gpu" else wanted(kind)) or ():
            device = known[result["device"]]
            placement = device.placement if isinstance(device, MigPartition) else None
            others = held.setdefault(device.gpu.uuid, [])
            for other_kind, other in others:
                assert placement is not None
                assert other is not None
                assert not placement.overlaps(other)
                assert not (kind == other_kind == "1g.10gb+me")
            others.append((kind, placement))
