from __future__ import annotations

import pytest

from driver.model.choice import NO_GPUS, GpuChoice
from driver.model.device import Gpu

UUIDS = [f"GPU-{digit * 8}-{digit * 4}-{digit * 4}-{digit * 4}-{digit * 12}" for digit in "012a"]
PRODUCTS = ["NVIDIA H100 80GB HBM3", "NVIDIA A100-SXM4-80GB", "NVIDIA A10", "NVIDIA L4"]
GPUS = [Gpu(uuid=UUIDS[index], index=index, minor=index, product=PRODUCTS[index]) for index in range(4)]


@pytest.mark.parametrize(
    ("value", "indices", "shown"),
    [
        ("off", [], "off"),
        ("", [], "off"),
        (None, [], "off"),
        (False, [], "off"),  # YAML's off
        (True, [0, 1, 2, 3], "all"),
        ("all", [0, 1, 2, 3], "all"),
        ("*", [0, 1, 2, 3], "all"),
        ("0", [0], "0"),
        (3, [3], "3"),
        ("0, 2,2", [0, 2], "0,2"),
        ([1, "*h100*"], [0, 1], "1,*h100*"),
        ("*A10", [2], "*A10"),
        ("*A10*", [1, 2], "*A10*"),
        ("nvidia l4", [3], "nvidia l4"),
        (UUIDS[3].upper().replace("GPU", "GPU"), [3], UUIDS[3].upper()),
        (f"{UUIDS[1]},9", [1], f"{UUIDS[1]},9"),
    ],
)
def test_gpus_are_named_by_index_uuid_or_product(value: object, indices: list[int], shown: str) -> None:
    choice = GpuChoice.parse(value)
    assert [gpu.index for gpu in GPUS if choice.names(gpu)] == indices
    assert str(choice) == shown
    assert GpuChoice.parse(str(choice)) == choice
    assert bool(choice) is (shown != "off")


@pytest.mark.parametrize(
    ("value", "words"),
    [
        ("off,0", "'off' doesn't go with others"),
        ("0,all", "'all' doesn't go with others"),
        ("GPU-1234", "no whole UUID"),
        ("gpu-0", "no whole UUID"),
        ("-1", "no index"),
        ("123456", "no index"),
        ([1.5], "an index"),
        ([True], "an index"),
        ({"index": 0}, "an index"),
    ],
)
def test_what_means_no_gpu_is_refused(value: object, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        GpuChoice.parse(value)


def test_words_without_a_gpu_are_known() -> None:
    assert GpuChoice.parse("0,7,*h200*,*L4").unmatched(GPUS) == ("7", "*h200*")
    assert NO_GPUS.unmatched(GPUS) == ()
    assert not NO_GPUS
