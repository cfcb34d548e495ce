from __future__ import annotations

import pytest

from driver.localcluster.scheduler.explain import why_false
from tests.unit.localcluster.scheduler.test_cel import DEVICE, C, G

DOMAIN = 'device.attributes["gpu.nvidia.com"]'
H100 = '"NVIDIA H100 80GB HBM3"'


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
        (f"has({G}.nope)", f"{DOMAIN} has no nope"),
        (f"!has({G}.minor)", f"has({DOMAIN}.minor) is true, which is excluded"),
        (f"!{G}.migCapable", "migCapable is true, which is excluded"),
        (f'!{C}.memory.isLessThan(quantity("80Gi"))', "memory 81559Mi is below 80Gi by 361Mi"),
        (f"!({G}.minor == 1)", "minor is 1, which is excluded"),
        (f"!({G}.minor < 4)", "minor 1 is below 4 by 3"),
        (f"!!({G}.minor >= 4)", "minor 1 is below 4 by 3"),
        (f"!({G}.minor == 2 || {G}.minor > 0)", "minor 1 is above 0 by 1"),
        (f'!{G}.productName.contains("H100")', f'productName {H100} contains "H100", which is excluded'),
        (f'!({G}.productName in ["X", {H100}])', f'productName {H100} is one of ["X", {H100}], which is excluded'),
        ('!("gpu.nvidia.com" in device.attributes)', 'device.attributes has "gpu.nvidia.com", which is excluded'),
        (f"{G}.minor > 0 ? {G}.minor > 4 : false", "minor 1 is below 4 by 3"),
        (f"{G}.minor > 4 ? true : false", "minor 1 is below 4 by 3"),
        (f"{G}.minor > 4 ? true : {G}.minor == 2", "minor is 1, not 2"),
        (f'{G}[?"nope"].orValue("z") == "x"', f'{DOMAIN}[?"nope"].orValue("z") is "z", not "x"'),
        (
            f'{G}.migCapable && {G}.minor == 2 && {G}.productName == "X"',
            'minor is 1, not 2 and productName is "NVIDIA H100 80GB HBM3", not "X"',
        ),
        (f"{G}.minor == 2 || {G}.minor == 3", "minor is 1, not 2, and minor is 1, not 3"),
        (f'["A100"].exists(n, {G}.productName.contains(n))', '["A100"].exists(n, productName.contains(n)) is false'),
        (f"[1, 2].all(n, {G}.minor == n)", "[1, 2].all(n, minor == n) is false"),
        (f"cel.bind(g, {G}, g.minor == 2)", f"cel.bind(g, {DOMAIN}, g.minor == 2) is false"),
        (f"[1].map(n, n + {G}.minor)[0] == 7", "the expression[0] is 2, not 7"),
    ],
)  # fmt: skip
def test_words(expression, words):
    assert why_false(expression, DEVICE) == words
