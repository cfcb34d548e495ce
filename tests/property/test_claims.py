"""Random prepares, unprepares, restarts, reboots and damage: no device is held twice, nothing is left at the end."""

from __future__ import annotations

import shutil
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from driver.claims import allocation
from driver.claims.operations import Prepare, Unprepare
from driver.errors import DriverError
from driver.model.snapshot import Snapshot
from tests.examples import examples
from tests.unit.claims.helpers import Node, claim, gpus, mig_gpu, ref, result, uid

if TYPE_CHECKING:
    from driver.claims.state import ClaimState

DEVICES = ("gpu-0", "gpu-1", "gpu-2-mig-1g10gb-19-0", "gpu-2-mig-1g10gb-19-1")
SHARES = (None, "b98a178b-5be9-4ea2-99fc-1977135f03c1", "b98a178b-5be9-4ea2-99fc-1977135f03c2")
CLAIMS = st.integers(1, 5)
RESULTS = st.lists(st.tuples(st.sampled_from(DEVICES), st.sampled_from(SHARES), st.booleans()), min_size=1, max_size=3)


class ClaimsMachine(RuleBasedStateMachine):
    """Two instances on one disk; `prepared` is what the kubelet was told."""

    def __init__(self) -> None:
        super().__init__()
        self.root = Path(tempfile.mkdtemp())
        self.node = Node(self.root)
        self.node.snapshot = Snapshot(gpus=(*gpus(2), mig_gpu(2, (0, 1))))
        self.instances = [self.node.state(), self.node.state()]
        self.prepared: dict[int, set[tuple[str, str | None, bool]]] = {}

    def teardown(self) -> None:
        for number in range(1, 6):
            assert self.instances[0].run([Unprepare(claim=ref(number))]) == [None]
        assert self.node.leftovers() == []
        shutil.rmtree(self.root)

    def pick(self, second: bool) -> ClaimState:
        return self.instances[int(second)]

    @rule(number=CLAIMS, results=RESULTS, second=st.booleans())
    def prepare(self, number: int, results: list[tuple[str, str | None, bool]], second: bool) -> None:
        wanted = [
            result(device, adminAccess=admin) | ({"shareID": share} if share else {})
            for device, share, admin in results
        ]
        decoded = allocation.decode(claim(number, *wanted), ref(number))
        (outcome,) = self.pick(second).run([Prepare(allocation=decoded, since=time.monotonic_ns())])
        if isinstance(outcome, tuple):
            assert [one.device for one in outcome] == [device for device, _, _ in results]
            self.prepared[number] = set(results)
        else:
            assert isinstance(outcome, DriverError)

    @rule(number=CLAIMS, second=st.booleans())
    def unprepare(self, number: int, second: bool) -> None:
        assert self.pick(second).run([Unprepare(claim=ref(number))]) == [None]
        self.prepared.pop(number, None)

    @rule(second=st.booleans())
    def restart(self, second: bool) -> None:
        self.instances[int(second)] = self.node.state()

    @rule(number=CLAIMS)
    def lose_the_cdi_file(self, number: int) -> None:
        self.node.cdi.remove(uid(number))
        self.instances[0].refresh_cdi()

    @rule()
    def reboot(self) -> None:
        self.node.boot_id += "+"
        shutil.rmtree(self.node.cdi.directory, ignore_errors=True)
        self.instances = [self.node.state(), self.node.state()]
        self.prepared.clear()

    @invariant()
    def every_prepared_claim_has_its_file_and_its_record(self) -> None:
        current = [record for record in self.instances[1].records() if self.instances[1].current(record)]
        recorded = {record.claim.uid for record in current}
        assert recorded == {uid(number) for number in self.prepared}
        for number, results in self.prepared.items():
            names = {device if share is None else f"{device}-{share}" for device, share, _ in results}
            assert set(self.node.cdi.devices(uid(number))) == names

    @invariant()
    def no_device_is_held_twice(self) -> None:
        holders: dict[str, list[str | None]] = {}
        for results in self.prepared.values():
            for device, share, admin in results:
                if not admin:
                    holders.setdefault(device, []).append(share)
        for shares in holders.values():
            assert len(shares) == 1 or (None not in shares and len(set(shares)) == len(shares))


TestClaims = ClaimsMachine.TestCase
TestClaims.settings = settings(max_examples=examples(30), stateful_step_count=30)
