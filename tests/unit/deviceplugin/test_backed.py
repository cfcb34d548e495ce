from __future__ import annotations

import pytest

from driver.deviceplugin.backed import backed_gpus
from tests.unit.deviceplugin.helpers import config, shared
from tests.unit.slices.helpers import gpus

GPU, ONE, TWO = "nvidia.com/gpu", "nvidia.com/mig-1g.10gb", "nvidia.com/mig-2g.20gb"


@pytest.mark.parametrize(
    ("spec", "strategy", "resources", "indices"),
    [
        ("h100:2,l4", "none", {GPU}, [0, 1, 2]),
        ("h100:2", "none", set(), []),
        ("h100:2", "none", {ONE, "example.com/gpu"}, []),
        ("h100@mig=1g.10gb,h100", "none", {GPU, ONE}, [1]),
        ("h100@mig=1g.10gb,h100", "mixed", {GPU, ONE}, [0, 1]),
        ("h100@mig=1g.10gb,h100", "mixed", {GPU}, [1]),
        ("h100@mig=1g.10gb+2g.20gb", "mixed", {ONE}, []),
        ("h100@mig=1g.10gb+2g.20gb", "mixed", {ONE, TWO}, [0]),
        ("h100@mig=1g.10gb", "single", {GPU}, [0]),
        ("h100@mig", "mixed", {GPU, ONE}, []),
    ],
)
def test_a_gpu_is_backed_if_all_that_it_is_offered_as_is(spec, strategy, resources, indices):
    found = gpus(spec)
    backed = backed_gpus(found, config(mig_strategy=strategy), frozenset(resources))
    assert backed == tuple(found[index].uuid for index in indices)


@pytest.mark.parametrize("more", [{}, {"rename": "nvidia.com/gpu.shared"}, {"devices": 1}])
def test_what_is_shared_is_not(more):
    assert backed_gpus(gpus("h100:2"), config(shared(4, **more)), {GPU, "nvidia.com/gpu.shared"}) == ()


def test_renamed_resources_count():
    document = {"resources": {"gpus": [{"pattern": "*H100*", "name": "big"}, {"pattern": "*", "name": "gpu"}]}}
    found = gpus("h100,l4")
    assert backed_gpus(found, config(document), {GPU}) == (found[1].uuid,)
    assert backed_gpus(found, config(document), {"nvidia.com/big"}) == (found[0].uuid,)
