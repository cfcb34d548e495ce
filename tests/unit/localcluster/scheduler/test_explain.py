from __future__ import annotations

import pytest

from driver.localcluster.scheduler.explain import why_false
from tests.unit.localcluster.scheduler.test_cel import DEVICE, C, G


@pytest.mark.parametrize(
    ("expression", "words"),
    [
        (f'{C}.memory.compareTo(quantity("80Gi")) >= 0', "memory 81559Mi is below 80Gi by 361Mi"),
        (f'{C}.memory.isLessThan(quantity("40Gi"))', "memory 81559Mi is above 40Gi by 40599Mi"),
        (f'{C}.memory == quantity("80Gi")', "memory is 81559Mi, not 80Gi (below it by 361Mi)"),
        (f'{C}.memory.isGreaterThan(quantity("81559Mi"))', "memory 81559Mi is not above 81559Mi"),
        (f'{G}.driverVersion.isGreaterThan(semver("590.0.0"))', "driverVersion 580.105.8 is below 590.0.0"),
        (f'semver("590.0.0").isLessThan({G}.driverVersion)', "driverVersion 580.105.8 is below 590.0.0"),
        (f"{G}.minor >= 4", "minor 1 is below 4 by 3"),
        (f"4 <= {G}.minor", "minor 1 is below 4 by 3"),
        (f'{G}.productName == "NVIDIA L4"', 'productName is "NVIDIA H100 80GB HBM3", not "NVIDIA L4"'),
        (f'"NVIDIA L4" == {G}.productName', 'productName is "NVIDIA H100 80GB HBM3", not "NVIDIA L4"'),
        (f"{G}.minor != 1", "minor is 1, which is excluded"),
        (f'{G}.productName.matches("A100")', 'productName "NVIDIA H100 80GB HBM3" does not match "A100"'),
        (
            f'{G}.productName.contains("h100")',
            'productName "NVIDIA H100 80GB HBM3" does not contain "h100" (it does in another case: see lowerAscii())',
        ),
        (f'{G}.productName in ["A", "B"]', 'productName is "NVIDIA H100 80GB HBM3", not one of ["A", "B"]'),
        ('"example.com" in device.attributes', 'device.attributes has no "example.com"'),
        (f"has({G}.nope)", "has(nope) is false"),
        (f"!{G}.migCapable", "!(migCapable) is false"),
        (
            f'{G}.migCapable && {G}.minor == 2 && {G}.productName == "X"',
            'minor is 1, not 2 and productName is "NVIDIA H100 80GB HBM3", not "X"',
        ),
        (f"{G}.minor == 2 || {G}.minor == 3", "minor is 1, not 2, and minor is 1, not 3"),
        (f'["A100"].exists(n, {G}.productName.contains(n))', "the expression is false"),
    ],
)  # fmt: skip
def test_words(expression, words):
    assert why_false(expression, DEVICE) == words
