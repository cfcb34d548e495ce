"""Whatever GPUs say of themselves, their labels are ones that the API server takes."""

from __future__ import annotations

from dataclasses import replace
from types import MappingProxyType
from typing import TYPE_CHECKING

from hypothesis import given, settings
from hypothesis import strategies as st

from driver.config.device_plugin import PluginConfig, Replicas, Sharing
from driver.config.plugin_flags import PluginFlags
from driver.labels import PREFIX, LabelOptions, labels
from driver.localcluster.apiserver.validation.common import label_value, qualified_name
from driver.model.ownership import Owner, Ownership
from tests.examples import examples
from tests.property.snapshots import snapshots

if TYPE_CHECKING:
    from driver.model.snapshot import Snapshot

PLUGINS = Ownership(owner=Owner.DEVICE_PLUGIN, wanted=Owner.DEVICE_PLUGIN)
NAMES = st.sampled_from(["nvidia.com/gpu", "nvidia.com/mig-1g.10gb"])
RULES = st.builds(Replicas, name=NAMES, replicas=st.integers(2, 4096), rename=st.sampled_from(["", "nvidia.com/x"]))


@st.composite
def label_options(draw: st.DrawFn) -> LabelOptions:
    sharing = Sharing(
        kind=draw(st.sampled_from(["none", "mps", "time-slicing"])), resources=tuple(draw(st.lists(RULES, max_size=2)))
    )
    strategy = draw(st.sampled_from(["none", "single", "mixed"]))
    config = PluginConfig(flags=PluginFlags(mig_strategy=strategy), sharing=sharing)
    return LabelOptions(config=config, machine=draw(st.text(max_size=80)))


@given(snapshots(), label_options(), st.booleans())
@settings(max_examples=examples(300))
def test_keys_and_values_are_valid(snapshot: Snapshot, options: LabelOptions, plugin: bool) -> None:
    owned = {gpu.uuid: PLUGINS for gpu in snapshot.gpus} if plugin else {}
    found = labels(replace(snapshot, ownership=MappingProxyType(owned)), options)
    assert bool(found) == bool(snapshot.gpus)
    assert all(key.startswith(PREFIX) for key in found)
    wrong = [qualified_name("labels", key) + label_value("labels", value) for key, value in found.items()]
    assert [errors for errors in wrong if errors] == []


@given(snapshots(), label_options(), st.randoms())
def test_the_order_of_gpus_makes_no_difference_to_what_the_node_has(snapshot, options, random) -> None:
    gpus = list(snapshot.gpus)
    random.shuffle(gpus)
    names = ("gpu.product", "gpu.products", "gpu.count", "mig.capable", "vgpu.present", "gpu.clique")
    before, after = (labels(one, options) for one in (snapshot, replace(snapshot, gpus=tuple(gpus))))
    assert [before.get(PREFIX + name) for name in names] == [after.get(PREFIX + name) for name in names]
