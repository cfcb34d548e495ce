"""Whatever edits come, a spec that is written is one that the runtime loads, in the lowest version that serves.

The runtime's side is the embedded cluster's: an implementation of its own, held to containerd's recorded answers.
"""

from __future__ import annotations

import json
from typing import Any

from hypothesis import event, given
from hypothesis import strategies as st

from driver.cdi.spec import ContainerEdits, DeviceNode, Hook, Mount, claim_spec, encode, merge
from driver.errors import InvalidValueError
from driver.localcluster.containers import cdi_spec

UIDS = st.from_regex(r"[0-9a-zA-Z][0-9A-Za-z_-]{0,40}", fullmatch=True)


def mostly(good: st.SearchStrategy[Any], *bad: Any) -> st.SearchStrategy[Any]:
    """Few are bad, so that many whole specs are good."""
    return st.integers(0, 60).flatmap(lambda number: st.sampled_from(bad) if number == 41 else good)


PATHS = mostly(st.sampled_from(["/dev/a", "/dev/b", "/x", "/ü"]), "", "a\0b")
NUMBERS = mostly(st.one_of(st.none(), st.integers(0, 3), st.just((1 << 32) - 1)), -1, 1 << 32)
NODES = st.builds(
    DeviceNode,
    path=PATHS,
    host_path=PATHS,
    type=mostly(st.sampled_from(["", "c", "b"]), "z"),
    major=NUMBERS,
    minor=NUMBERS,
    file_mode=NUMBERS,
    gid=NUMBERS,
    permissions=mostly(st.sampled_from(["", "rw", "rwm"]), "rwx"),
)
MOUNTS = st.builds(Mount, host_path=PATHS, container_path=PATHS, type=st.sampled_from(["", "tmpfs"]))
HOOKS = st.builds(
    Hook,
    name=mostly(st.sampled_from(["createContainer", "prestart"]), "sometime"),
    path=PATHS,
    env=st.lists(mostly(st.just("A=1"), "A", "=1"), max_size=1).map(tuple),
)
EDITS = st.builds(
    ContainerEdits,
    env=st.dictionaries(
        mostly(st.sampled_from(["A", "B", "C D"]), ""), mostly(st.sampled_from(["", "1", "ü=\n"]), "\0"), max_size=2
    ),
    device_nodes=st.lists(NODES, max_size=2).map(tuple),
    mounts=st.lists(MOUNTS, max_size=2).map(tuple),
    hooks=st.lists(HOOKS, max_size=2).map(tuple),
    additional_gids=st.lists(mostly(st.integers(0, 1 << 31), -1, 1 << 32), max_size=2).map(tuple),
)


DEVICES = st.dictionaries(
    mostly(st.sampled_from(["gpu-0", "gpu-1", "m.i:g"]), "", "-", "a b", "ü"),
    EDITS.filter(bool),
    min_size=1,
    max_size=2,
)


@given(uid=UIDS, common=EDITS, devices=mostly(DEVICES, {}))
def test_a_spec_is_refused_or_loaded(uid, common, devices):
    try:
        spec = claim_spec(uid, common=common, devices={f"{uid}-{name}": edits for name, edits in devices.items()})
    except InvalidValueError:
        event("refused")
        return
    event("loaded")
    data = json.loads(encode(spec))
    assert data == spec
    cdi_spec.load(data)
    assert data["cdiVersion"] == max("0.3.0", cdi_spec.minimum_version(data))


@given(EDITS, EDITS, EDITS)
def test_merging_is_the_same_in_any_grouping_and_keeps_nothing_twice(one, two, three):
    assert merge(merge(one, two), three) == merge(one, merge(two, three))
    assert merge(one, two, two) == merge(one, two)
