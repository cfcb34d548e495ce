"""Random histories of a pool: changes, crashes amid the writes, foreign deletions, duplicates and edits."""

from __future__ import annotations

from itertools import count
from typing import TYPE_CHECKING, Any

from hypothesis import given
from hypothesis import strategies as st

from driver.slices.diff import Owner, Plan, diff

if TYPE_CHECKING:
    from driver.model.json_object import JsonObject

OWNER = Owner(driver="d.com", node_name="n", node_uid="u")

POOLS = st.lists(st.sampled_from("abc"), min_size=1, max_size=4).map(tuple)  # a letter is a slice's content


def specs(pool: tuple[str, ...]) -> list[JsonObject]:
    fixed = {
        "driver": "d.com",
        "nodeName": "n",
        "pool": {"name": "n", "generation": 1, "resourceSliceCount": len(pool)},
    }
    return [{**fixed, "devices": [{"name": f"{letter}-{index}"}]} for index, letter in enumerate(pool)]


class Api:
    """An API server's bookkeeping, and what a reader sees after each write."""

    def __init__(self) -> None:
        self.items: dict[str, JsonObject] = {}
        self.numbers = count(1)
        self.wanted: set[tuple[str, ...]] = set()  # all pools that ever were

    def put(self, item: JsonObject, name: str) -> None:
        metadata = {**item["metadata"], "name": name, "resourceVersion": str(next(self.numbers))}
        metadata.setdefault("uid", name)
        self.items[name] = {**item, "metadata": metadata}

    def write(self, plan: Plan, writes: int, *, check: bool) -> None:
        """Do the first writes of a plan, then crash."""
        steps = [*plan.deletions, *plan.updates, *plan.creations]
        for step in steps[:writes]:
            self.step(step)
            if check:
                self.check_reader()

    def step(self, step: Any) -> None:
        if isinstance(step, dict):
            metadata = step["metadata"]
            if "name" in metadata:
                assert self.items[metadata["name"]]["metadata"]["resourceVersion"] == metadata["resourceVersion"]
                self.put(step, metadata["name"])
            else:
                self.put(step, f"{metadata['generateName']}{next(self.numbers):05d}")
        else:
            assert self.items[step.name]["metadata"]["resourceVersion"] == step.resource_version
            del self.items[step.name]

    def check_reader(self) -> None:
        """A pool that looks complete must be one that was wanted, never a mixture."""
        newest = max((item["spec"]["pool"]["generation"] for item in self.items.values()), default=0)
        pool = [self.items[name]["spec"] for name in sorted(self.items)]
        pool = [spec for spec in pool if spec["pool"]["generation"] == newest]
        if pool and all(spec["pool"]["resourceSliceCount"] == len(pool) for spec in pool):
            letters = tuple(spec["devices"][0]["name"][0] for spec in pool)
            assert letters in self.wanted

    def reach(self, pool: tuple[str, ...], writes: int = 1000, *, check: bool = True) -> Plan:
        self.wanted.add(pool)
        plan = diff(specs(pool), list(self.items.values()), OWNER)
        self.write(plan, writes, check=check)
        return plan

    def assert_exactly(self, pool: tuple[str, ...]) -> None:
        assert not diff(specs(pool), list(self.items.values()), OWNER)
        stored = [self.items[name]["spec"] for name in sorted(self.items)]
        assert [spec["devices"] for spec in stored] == [spec["devices"] for spec in specs(pool)]
        assert {spec["pool"]["resourceSliceCount"] for spec in stored} == {len(pool)}
        assert len({spec["pool"]["generation"] for spec in stored}) == 1


@given(st.lists(st.tuples(POOLS, st.integers(0, 9)), max_size=6), POOLS)
def test_no_reader_ever_sees_a_mixture_and_every_crash_is_healed(
    history: list[tuple[tuple[str, ...], int]], last: tuple[str, ...]
) -> None:
    api = Api()
    for pool, writes in history:
        api.reach(pool, writes)
    api.reach(last)
    api.assert_exactly(last)


FOREIGN = st.lists(
    st.tuples(st.sampled_from(["delete", "edit", "copy", "rename", "generation", "alien"]), st.integers(0, 20)),
    max_size=5,
)


@given(POOLS, FOREIGN, POOLS)
def test_whatever_others_did_one_diff_repairs_it(
    before: tuple[str, ...], tampering: list[tuple[str, int]], after: tuple[str, ...]
) -> None:
    api = Api()
    api.reach(before)
    for what, number in tampering:
        tamper(api, what, number)
    api.reach(after, check=False)
    api.assert_exactly(after)


def tamper(api: Api, what: str, number: int) -> None:
    if not api.items:
        return
    name = sorted(api.items)[number % len(api.items)]
    item = api.items[name]
    if what == "delete":
        del api.items[name]
    elif what == "edit":
        api.put({**item, "spec": {**item["spec"], "devices": []}}, name)
    elif what == "generation":
        pool = {**item["spec"]["pool"], "generation": number}
        api.put({**item, "spec": {**item["spec"], "pool": pool}}, name)
    else:
        generate = "" if what == "alien" else item["metadata"].get("generateName", "")
        prefix = generate if what == "copy" else what
        api.put({"metadata": {"generateName": generate}, "spec": item["spec"]}, f"{prefix}{next(api.numbers):05d}")


@given(POOLS, POOLS)
def test_the_writes_are_the_fewest(before: tuple[str, ...], after: tuple[str, ...]) -> None:
    api = Api()
    api.reach(before)
    plan = api.reach(after)
    changed = sum(one != other for one, other in zip(before, after, strict=False))
    if before == after:
        assert not plan
    elif len(before) == len(after) and changed == 1:
        assert (len(plan.deletions), len(plan.updates), len(plan.creations)) == (0, 1, 0)
    else:
        assert len(plan.deletions) == max(len(before) - len(after), 0)
        assert len(plan.updates) == min(len(before), len(after))
        assert len(plan.creations) == max(len(after) - len(before), 0)
