"""The classes are valid, and each selects what its name says, among devices as they are published."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from driver.device_classes import device_classes, profiles_of
from driver.localcluster.apiserver import Features, Store
from driver.localcluster.scheduler import cel
from driver.slices.build import build
from tests.unit.localcluster.support import pools_of
from tests.unit.slices.helpers import OPTIONS, PARTITIONS, add, partitioned, snapshot

DEPLOY = Path(__file__).parents[2] / "deploy"


def selected(found, options=OPTIONS) -> dict[str, set[str]]:
    """Names of the devices that each class selects, of all that a snapshot publishes."""
    pools = pools_of(add(Store(Features()), build(found, options)))
    chosen = {}
    for item in device_classes(profiles_of(found.devices())):
        (selector,) = item["spec"]["selectors"]
        program = cel.compile(selector["cel"]["expression"])
        matching = {one.name for pool in pools for one in pool.devices if program.matches(one.variables)}
        chosen[item["metadata"]["name"]] = matching
    return chosen


def test_each_class_selects_its_devices_among_all():
    found = snapshot("h100,h100@mig=1g.10gb*2+2g.20gb+1g.10gb+me,l4")
    chosen = selected(found)
    assert chosen.pop("gpu.nvidia.com") == {"gpu-0", "gpu-2"}
    mig = chosen.pop("mig.nvidia.com")
    assert {len(names) for name, names in chosen.items() if name == "mig-1g.10gb.nvidia.com"} == {2}
    assert sorted(chosen) == ["mig-1g.10gb.me.nvidia.com", "mig-1g.10gb.nvidia.com", "mig-2g.20gb.nvidia.com"]
    assert sum(len(names) for names in chosen.values()) == len(mig) == 4
    assert set.union(*chosen.values()) == mig


def test_partitions_for_claims_have_classes_too():
    found = partitioned("h100")
    chosen = selected(found, PARTITIONS)
    assert chosen["gpu.nvidia.com"] == {"gpu-0"}
    assert {len(chosen[f"mig-{profile}.nvidia.com"]) for profile in ("1g.10gb", "1g.10gb.me")} == {7}
    assert chosen["mig-7g.80gb.nvidia.com"] == {"gpu-0-mig-7g80gb-0-0"}


@pytest.mark.parametrize("version", ["1.34", "1.35", "1.36"])
@pytest.mark.parametrize("extended", [True, False])
def test_the_api_server_takes_them(version, extended):
    store = Store(Features(kubernetes=version))
    for item in device_classes(["1g.10gb", "1g.10gb+me", "1c.3g.40gb"], extended_resources=extended):
        stored = store.create("deviceclasses", item)
        assert stored["spec"]["selectors"] == item["spec"]["selectors"]


def test_a_name_belongs_to_one_class():
    found = device_classes(["1g.10gb", "1g.10gb+me", "2g.20gb"])
    resources = [item["spec"]["extendedResourceName"] for item in found if "extendedResourceName" in item["spec"]]
    assert resources == ["nvidia.com/gpu", *(f"nvidia.com/mig-{one}" for one in ("1g.10gb", "1g.10gb.me", "2g.20gb"))]


@pytest.mark.parametrize("profile", ["", "a' || true", "1G.10GB", "x" * 64, "1g.10gb\\"])
def test_what_is_no_profile_has_no_class(profile):
    assert device_classes([profile]) == device_classes([])


def test_what_is_installed_is_what_is_shown():
    installed = list(yaml.safe_load_all((DEPLOY / "base/deviceclasses.yaml").read_text()))
    assert installed == device_classes([], extended_resources=False)
