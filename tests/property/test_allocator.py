"""Whatever is asked for: nothing is handed out twice, nothing is overdrawn, the same input gives the same answer."""

from __future__ import annotations

import itertools
from collections import Counter
from fractions import Fraction

from hypothesis import given, settings
from hypothesis import strategies as st

from driver.localcluster.scheduler import allocator, celvalues, consumption
from driver.localcluster.scheduler.devices import Policy
from driver.localcluster.scheduler.outcome import Allocation, Unsatisfiable
from driver.localcluster.scheduler.state import AllocatedState
from driver.model import quantity
from tests.examples import examples
from tests.unit.localcluster.support import pools_of

DRIVER = "gpu.nvidia.com"
NODE = {"metadata": {"name": "a"}}
CLASSES = {"c": {"metadata": {"name": "c"}, "spec": {}}}

small = st.integers(0, 3)


@st.composite
def device(draw, name):
    body = {"name": name, "attributes": {}, "capacity": {"memory": {"value": "8"}}}
    for attribute in ("numa", "kind"):
        if draw(st.booleans()) or attribute == "kind":
            body["attributes"][attribute] = {"int": draw(small)}
    if draw(st.booleans()):
        slots = {"slots": {"value": str(draw(st.integers(1, 3)))}}
        body["consumesCounters"] = [{"counterSet": "s", "counters": slots}]
    if draw(st.booleans()):
        body["allowMultipleAllocations"] = True
    if draw(st.integers(0, 4)) == 0:
        body["taints"] = [{"key": "k", "effect": draw(st.sampled_from(["NoSchedule", "NoExecute", "None"]))}]
    return body


@st.composite
def slices(draw):
    pool = {"name": "a", "generation": 1, "resourceSliceCount": 2}
    common = {"driver": DRIVER, "nodeName": "a", "pool": pool}
    found = [draw(device(f"gpu-{number}")) for number in range(draw(st.integers(0, 6)))]
    counters = [{"name": "s", "counters": {"slots": {"value": str(draw(st.integers(0, 6)))}}}]
    return [
        {"metadata": {"name": "1"}, "spec": {**common, "sharedCounters": counters}},
        {"metadata": {"name": "2"}, "spec": {**common, "devices": found}},
    ]


@st.composite
def exactly(draw):
    body = {"deviceClassName": "c"}
    if draw(st.integers(0, 4)) == 0:
        body["allocationMode"] = "All"
    else:
        body["count"] = draw(st.integers(1, 3))
    if draw(st.booleans()):
        body["selectors"] = [{"cel": {"expression": f"device.attributes['{DRIVER}'].kind >= {draw(small)}"}}]
    if draw(st.booleans()):
        body["capacity"] = {"requests": {"memory": str(draw(st.integers(1, 9)))}}
    if draw(st.integers(0, 5)) == 0:
        body["adminAccess"] = True
    if draw(st.integers(0, 3)) == 0:
        body["tolerations"] = [{"operator": "Exists"}]
    return body


@st.composite
def claim(draw, uid):
    requests = [{"name": f"r{number}", "exactly": draw(exactly())} for number in range(draw(st.integers(1, 2)))]
    if draw(st.booleans()):
        alternatives = [{"name": f"x{number}", **draw(exactly())} for number in range(2)]
        requests.append({"name": "first", "firstAvailable": alternatives})
    constraints = []
    if draw(st.booleans()):
        kind = draw(st.sampled_from(["matchAttribute", "distinctAttribute"]))
        constraints.append({kind: f"{DRIVER}/numa"})
    return {
        "metadata": {"namespace": "n", "name": uid, "uid": uid},
        "spec": {"devices": {"requests": requests, "constraints": constraints}},
    }


claims = st.lists(st.tuples(st.integers(0, 9), st.booleans()), min_size=1, max_size=8).flatmap(
    lambda steps: st.tuples(*(claim(f"c{index}") for index in range(len(steps)))).map(
        lambda made: list(zip(made, steps, strict=True))
    )
)


def allocate(wanted, pools, state):
    ids = itertools.count()
    return allocator.allocate(wanted, CLASSES, pools, state, NODE, new_id=lambda: f"share-{next(ids)}")


@given(slices(), claims)
@settings(max_examples=examples(150))
def test_nothing_is_ever_handed_out_twice_or_overdrawn(made, steps):
    pools = pools_of(made)
    known = {item.id: item for item in pools[0].devices}
    state, held = AllocatedState(), {}
    for item, (victim, leaves) in steps:
        if leaves and held:
            uid = sorted(held)[victim % len(held)]
            del held[uid]
            state.drop(uid)
        outcome = allocate([item], pools, state)
        assert outcome == allocate([item], pools_of(made), state)
        if isinstance(outcome, Unsatisfiable):
            continue
        stored = {**item, "status": {"allocation": outcome.claims[f"n/{item['metadata']['uid']}"]}}
        held[item["metadata"]["uid"]] = stored
        state.put(stored)
        check_claim(stored, known)
        check_cluster(held.values(), known, pools[0].counters)


def results(stored):
    return stored["status"]["allocation"]["devices"]["results"]


def check_claim(stored, known):
    names = [item["device"] for item in results(stored)]
    assert len(set(names)) == len(names), "a claim holds a device once"
    counts = Counter(item["request"] for item in results(stored))
    for request in stored["spec"]["devices"]["requests"]:
        if "exactly" in request and "count" in request["exactly"]:
            assert counts[request["name"]] == request["exactly"]["count"]
        elif "firstAvailable" in request:
            assert sum(f"first/x{number}" in counts for number in range(2)) == 1
    for constraint in stored["spec"]["devices"]["constraints"]:
        values = [known[DRIVER, "a", name].attributes[DRIVER, "numa"] for name in names]
        assert len(set(values)) == (1 if "matchAttribute" in constraint else len(values))


def check_cluster(stored, known, counters):
    held = [item for each in stored for item in results(each) if not item.get("adminAccess")]
    by_device = Counter(item["device"] for item in held)
    used = Counter()
    for name, number in by_device.items():
        found = known[DRIVER, "a", name]
        assert number == 1 or found.multiple
        used.update(found.consumes)
    assert all(amount <= counters[counter] for counter, amount in used.items())
    taken = Counter()
    for item in held:
        for capacity, amount in (item.get("consumedCapacity") or {}).items():
            taken[item["device"], capacity] += quantity.parse(amount)
    assert all(amount <= known[DRIVER, "a", name].capacity[DRIVER, of].value for (name, of), amount in taken.items())


@given(st.lists(st.one_of(st.none(), small), max_size=7), st.integers(1, 4), st.booleans())
def test_a_way_is_found_exactly_if_there_is_one_and_it_is_the_first(values, count, distinct):
    found = [
        {"name": f"gpu-{index}", "attributes": {} if value is None else {"x": {"int": value}}}
        for index, value in enumerate(values)
    ]
    pool = {"name": "a", "generation": 1, "resourceSliceCount": 1}
    body = {"driver": DRIVER, "nodeName": "a", "pool": pool, "devices": found}
    pools = pools_of([{"metadata": {"name": "1"}, "spec": body}])
    constraint = {"distinctAttribute" if distinct else "matchAttribute": f"{DRIVER}/x"}
    wanted = {
        "metadata": {"namespace": "n", "name": "c", "uid": "c"},
        "spec": {
            "devices": {
                "requests": [{"name": "r", "exactly": {"deviceClassName": "c", "count": count}}],
                "constraints": [constraint],
            }
        },
    }
    ways = [
        way
        for way in itertools.combinations(range(len(values)), count)
        if None not in (chosen := [values[index] for index in way]) and len(set(chosen)) == (count if distinct else 1)
    ]
    outcome = allocate([wanted], pools, AllocatedState())
    assert isinstance(outcome, Allocation) == bool(ways)
    if ways:
        names = [item["device"] for item in outcome.claims["n/c"]["devices"]["results"]]
        assert names == [f"gpu-{index}" for index in ways[0]]


@given(st.integers(0, 100), st.integers(0, 20), st.integers(1, 9), st.one_of(st.none(), st.integers(0, 100)))
def test_rounding_gives_the_least_allowed_amount(amount, low, step, high):
    policy = Policy(default=None, low=Fraction(low), step=Fraction(step), high=None if high is None else Fraction(high))
    allowed = [low + number * step for number in range(200) if high is None or low + number * step <= high]
    expected = next((value for value in allowed if value >= amount), None)
    assert consumption.rounded(Fraction(amount), policy) == expected


@given(st.integers(0, 1 << 62))
def test_a_quantity_reads_back_as_it_was_written(value):
    assert quantity.parse(celvalues.show(Fraction(value))) == value
