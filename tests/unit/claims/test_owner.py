"""The engine is the last line of defence for who offers a GPU."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from driver.claims.allocation import decode
from driver.claims.plan import make_plan
from driver.errors import ClaimRefusedError
from driver.model.ownership import Owner, Ownership
from driver.model.snapshot import Snapshot
from tests.unit.claims.harness import instance
from tests.unit.claims.helpers import NODE, Claims, Node, claim, gpus, ref, result

if TYPE_CHECKING:
    from pathlib import Path

    from driver.claims.plan import Plan

DRA, PLUGIN, WITHHELD = Owner.DRA, Owner.DEVICE_PLUGIN, Owner.WITHHELD


def plan(owner: Owner, wanted: Owner, **further: object) -> Plan:
    snapshot = Snapshot(gpus=gpus(2), ownership={"GPU-0": Ownership(owner=owner, wanted=wanted)})
    allocation = decode(claim(1, result("gpu-0", **further)), ref(1))
    return make_plan(allocation, snapshot=snapshot, pool=NODE, held={}, node=NODE)


@pytest.mark.parametrize(("owner", "wanted"), [(PLUGIN, PLUGIN), (PLUGIN, DRA), (WITHHELD, DRA), (WITHHELD, WITHHELD)])
def test_K6_a_gpu_of_another_owner_is_refused(owner: Owner, wanted: Owner) -> None:
    with pytest.raises(ClaimRefusedError, match=f"GPU-0.* is not offered through DRA .*its owner is {owner}"):
        plan(owner, wanted)


def test_a_claim_that_was_allocated_before_the_gpu_was_withdrawn_is_prepared() -> None:
    assert plan(DRA, PLUGIN).devices[0].device.name == "gpu-0"


def test_admin_access_sees_every_gpu() -> None:
    assert plan(PLUGIN, PLUGIN, adminAccess=True).devices[0].device.name == "gpu-0"


async def test_what_is_prepared_stays_so_and_can_be_released(tmp_path: Path) -> None:
    async with instance(Node(tmp_path), Claims()) as harness:
        harness.claims.add(claim(1, result("gpu-0")))
        answer = await harness.prepare(1)
        withheld = Ownership(owner=WITHHELD, wanted=PLUGIN)
        harness.node.snapshot = replace(harness.node.snapshot, ownership={"GPU-0": withheld})
        assert await harness.prepare(1) == answer
        assert await harness.unprepare(1) is None
