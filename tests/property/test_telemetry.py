"""Whatever is used by whomever: the text is Prometheus', no series comes twice, and sums count no memory twice."""

from __future__ import annotations

import dataclasses
import json
from collections import Counter
from types import MappingProxyType

from hypothesis import given
from hypothesis import strategies as st
from prometheus_client.parser import text_string_to_metric_families

from driver.claims.device_status import MAX_DATA, device_statuses, same_entries
from driver.model.health import Health
from driver.model.holder import Holder
from driver.model.usage import GpuUsage, Usage
from driver.telemetry.exposition import escape, exposition
from driver.telemetry.report import AgentState, describe
from driver.telemetry.sample import Sample
from tests.unit.slices.helpers import NODE, snapshot
from tests.unit.telemetry.builders import held, record

FIELDS = [one.name for one in dataclasses.fields(Usage)]
words = st.text(max_size=12)
amounts = st.one_of(st.none(), st.integers(0, 1 << 62), st.floats(0, 1e18))
usages = st.builds(Usage, **dict.fromkeys(FIELDS, amounts))
holders = st.builds(
    Holder, namespace=words, pod=words, container=words, claim=words, claim_namespace=words, device=words,
    share_id=words, admin=st.booleans(),
)  # fmt: skip
SPECS = ("h100:3", "h100@mig=1g.10gb*3,l4", "a100-40:2@mig=3g.20gb+1g.5gb")


@st.composite
def worlds(draw):
    node = snapshot(draw(st.sampled_from(SPECS)))
    usage, held_by = {}, {}
    for gpu in node.gpus:
        instances = gpu.mig.instances if gpu.mig is not None else ()
        parts = {one.uuid: draw(usages) for one in instances if draw(st.booleans())}
        if draw(st.booleans()):
            usage[gpu.uuid] = GpuUsage(whole=draw(usages), mig=MappingProxyType(parts))
        for uuid in (gpu.uuid, *parts):
            held_by[uuid] = tuple(draw(st.lists(holders, max_size=3)))
    return node, usage, held_by


@given(worlds(), words)
def test_the_text_is_prometheus_and_no_series_comes_twice(world, hostname):
    node, usage, held_by = world
    text = exposition(node, usage, held_by, hostname)
    series = [
        (one.name, tuple(sorted(one.labels.items())))
        for family in text_string_to_metric_families(text)
        for one in family.samples
    ]
    assert max(Counter(series).values(), default=1) == 1
    assert all(dict(labels).get("Hostname", "") == hostname for _, labels in series)
    names = [line.split()[2] for line in text.splitlines() if line.startswith("# TYPE ")]
    assert len(names) == len(set(names))


@given(worlds())
def test_memory_is_told_of_the_whole_or_of_its_parts(world):
    node, usage, _ = world
    text = exposition(node, usage, {}, NODE)
    told: dict[str, list[str]] = {}
    for family in text_string_to_metric_families(text):
        for one in family.samples:
            if one.name == "DCGM_FI_DEV_FB_USED":
                told.setdefault(one.labels["UUID"], []).append(one.labels.get("dra_mig_device_uuid", ""))
    for uuid, parts in told.items():
        assert (parts == [""]) == (not usage[uuid].mig)


@given(words)
def test_any_label_value_comes_back(text):
    (family,) = text_string_to_metric_families(f'm{{a="{escape(text)}"}} 1\n')
    assert family.samples[0].labels["a"] == text


@given(worlds(), st.none() | st.floats(0, 1e6), words)
def test_the_status_document_is_json_with_every_device(world, age, problem):
    node, usage, held_by = world
    agent = AgentState(
        node=NODE, version="1", pid=1, time="2026-01-01T00:00:00Z", missing={}, since={}, problem=problem, age=age
    )
    status = json.loads(json.dumps(describe(agent, node, Sample(usage=usage, holders=held_by))))
    assert [gpu["uuid"] for gpu in status["gpus"]] == [gpu.uuid for gpu in node.gpus]
    shown = {part["uuid"]: len(part["holders"]) for gpu in status["gpus"] for part in (gpu, *gpu["devices"])}
    assert all(shown[uuid] == len(found) for uuid, found in held_by.items())


@given(
    st.sampled_from(SPECS[:1]), st.lists(st.integers(0, 3), min_size=1, max_size=4, unique=True), st.booleans(),
    st.text(max_size=2000), st.text(max_size=20_000),
)  # fmt: skip
def test_a_claims_status_is_short_enough_stable_and_complete(spec, indices, healthy, reason, product):
    node = snapshot(spec, product=product)
    uuids = {gpu.index: gpu.uuid for gpu in node.gpus}
    sick = dataclasses.replace(
        node, health=MappingProxyType({uuid: Health(healthy=healthy, reason=reason) for uuid in uuids.values()})
    )
    claim = record("c", *(held(f"gpu-{index}", uuids.get(index, "GPU-gone")) for index in indices))
    first = device_statuses(claim, sick, (), "2026-01-01T00:00:00Z")
    assert [entry["device"] for entry in first] == [f"gpu-{index}" for index in indices]
    assert all(len(json.dumps(one["data"], separators=(",", ":")).encode()) <= MAX_DATA for one in first)
    assert same_entries(first, device_statuses(claim, sick, first, "2027-01-01T00:00:00Z"))
