from __future__ import annotations

from collections import Counter

import pytest

from driver.errors import InvalidValueError
from driver.model.topology import nvlink_domains
from tests.unit.deviceplugin.helpers import config, preference, shared, snapshot


def gpus_of(ids):
    return Counter(one.partition("::")[0] for one in ids)


def test_a_set_within_one_nvlink_domain():
    node = snapshot("a100-80:4@pairs")
    wanted, ids = preference(node, config())
    domains = nvlink_domains(node.gpus)
    first, second = wanted.prefer(ids, [], 2)
    assert domains[first].id == domains[second].id
    assert domains[first].size == 2


def test_one_gpu_is_taken_from_a_pair_that_is_broken_already():
    node = snapshot("a100-80:4@pairs")
    wanted, ids = preference(node, config())
    pair = set(wanted.prefer(ids, [], 2))
    free = [one for one in ids if one != min(pair)]
    assert wanted.prefer(free, [], 1) == [max(pair)]


def test_a_switch_joins_all_so_that_numa_decides():
    node = snapshot("h100:8")
    wanted, ids = preference(node, config())
    numa = {gpu.uuid: gpu.numa_node for gpu in node.gpus}
    assert len({numa[one] for one in wanted.prefer(ids, [], 4)}) == 1


def test_must_include_and_stable_order():
    node = snapshot("h100:8")
    wanted, ids = preference(node, config())
    chosen = wanted.prefer(reversed(ids), [ids[5]], 4)
    assert ids[5] in chosen
    assert chosen == sorted(chosen, key=ids.index)
    assert chosen == wanted.prefer(ids, [ids[5]], 4)


def test_M10_two_replicas_come_from_two_gpus_the_untouched_one_first():
    wanted, ids = preference(snapshot("h100:2"), config(shared(4)))
    one_used = ids[1:]  # free: 3 of the first, 4 of the second
    chosen = wanted.prefer(one_used, [], 2)
    assert sorted(gpus_of(chosen).values()) == [1, 1]
    assert wanted.prefer(one_used, [], 1) == [ids[4]]


def test_distributed_goes_on_when_gpus_are_fewer():
    wanted, ids = preference(snapshot("h100:4"), config(shared(4)))
    assert set(gpus_of(wanted.prefer(ids, [], 8)).values()) == {2}


def test_packed_fills_the_most_used_first():
    wanted, ids = preference(snapshot("h100:2"), config(shared(4), shared_devices_allocation_policy="packed"))
    assert wanted.prefer([*ids[:4], *ids[6:]], [], 1) == [ids[6]]
    assert len(gpus_of(wanted.prefer(ids, [], 4))) == 1


def test_M10_mig_devices_are_packed_by_parent():
    node = snapshot("h100@mig=1g.10gb*4,h100@mig=1g.10gb*4")
    wanted, ids = preference(node, config(mig_strategy="mixed"), "nvidia.com/mig-1g.10gb")
    second = [one.uuid for one in node.gpus[1].mig.instances]
    without_one = [one for one in ids if one != second[0]]
    assert set(wanted.prefer(without_one, [], 3)) <= set(second)
    spread, _ = preference(
        node, config(mig_strategy="mixed", shared_devices_allocation_policy="distributed"), "nvidia.com/mig-1g.10gb"
    )
    assert len(set(spread.prefer(ids, [], 2)) & set(second)) == 1


def test_ids_that_are_gone_come_last_rather_than_fail():
    wanted, ids = preference(snapshot("h100:2"), config())
    assert wanted.prefer(["GPU-gone", *ids], [], 2) == ids
    assert wanted.prefer(["GPU-gone", *ids], [], 3) == [*ids, "GPU-gone"]
    assert wanted.prefer(["GPU-gone", *ids], ["GPU-gone"], 2) == ["GPU-gone", ids[0]]


@pytest.mark.parametrize(
    ("available", "must", "size", "words"),
    [
        (2, 0, 0, "must be at least 1"),
        (2, 0, -1, "must be at least 1"),
        (2, 0, 3, "only 2 devices are available"),
        (2, 2, 1, "at most allocation_size"),
        (1, -1, 1, "must be among available_deviceIDs"),
    ],
)
def test_requests_that_make_no_sense(available, must, size, words):
    wanted, ids = preference(snapshot("h100:4"), config())
    required = [ids[3]] if must < 0 else ids[:must]
    with pytest.raises(InvalidValueError, match=words):
        wanted.prefer(ids[:available], required, size)
