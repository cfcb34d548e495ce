from __future__ import annotations

import pytest

from driver.localcluster.scheduler import cel
from driver.localcluster.scheduler.celvalues import make_quantity, make_semver

G = 'device.attributes["gpu.nvidia.com"]'
C = 'device.capacity["gpu.nvidia.com"]'

DEVICE = cel.variables(
    "gpu.nvidia.com",
    {
        "gpu.nvidia.com": {
            "productName": "NVIDIA H100 80GB HBM3",
            "minor": 1,
            "driverVersion": make_semver("580.105.8+build.7"),
            "migCapable": True,
        },
        "resource.kubernetes.io": {"numaNode": 0},
    },
    {"gpu.nvidia.com": {"memory": make_quantity("81559Mi")}},
)


@pytest.mark.parametrize(
    "expression",
    [
        'device.driver == "gpu.nvidia.com"',
        f'{G}.productName.matches("H100")',
        f'{G}.productName.matches("^NVIDIA [A-Z]\\\\d+ ")',
        f'{G}.productName.lowerAscii().contains("h100")',
        f'{G}.productName.startsWith("NVIDIA") && {G}.productName.endsWith("HBM3")',
        f'{G}["minor"] == 1',
        f"{G}.minor in [1, 2]",
        f'"minor" in {G}',
        f'!("nope" in {G})',
        f"has({G}.minor) && !has({G}.nope)",
        '!("example.com" in device.attributes)',
        'has(device.attributes["example.com"].x) == false',
        f"{G}.?nope.orValue(3) == 3",
        f"{G}.migCapable",
        f'{C}.memory.compareTo(quantity("40Gi")) >= 0',
        f'{C}.memory.compareTo(quantity("80Gi")) < 0',
        f'{C}.memory.isGreaterThan(quantity("80G"))',
        f'{C}.memory.isLessThan(quantity("80Gi"))',
        f'{C}.memory == quantity("83516416Ki")',
        f'{C}.memory in [quantity("1Gi"), quantity("83516416Ki")]',
        f'{C}.memory.sub(quantity("81558Mi")) == quantity("1Mi")',
        f"{C}.memory.add(1).asInteger() == 85520809985",
        f"{C}.memory.sign() == 1 && {C}.memory.isInteger()",
        'quantity("1500m").asApproximateFloat() == 1.5 && !quantity("1500m").isInteger()',
        'isQuantity("80G") && !isQuantity("80 GB")',
        f'{G}.driverVersion.isGreaterThan(semver("570.0.0"))',
        f'{G}.driverVersion.isLessThan(semver("580.105.9"))',
        f'{G}.driverVersion.compareTo(semver("580.105.8")) == 0',
        f'{G}.driverVersion == semver("580.105.8")',
        f"{G}.driverVersion.major() == 580 && {G}.driverVersion.minor() == 105 && {G}.driverVersion.patch() == 8",
        'semver("v1.02", true) == semver("1.2.0")',
        'isSemver("1.2.3") && !isSemver("1.2") && isSemver("1.2", true)',
        'semver("1.0.0-rc.2").isLessThan(semver("1.0.0-rc.11")) && semver("1.0.0-rc.1").isLessThan(semver("1.0.0"))',
        f"cel.bind(gpu, {G}, gpu.minor == 1 && gpu.migCapable)",
        f'["H100", "H200"].exists(name, {G}.productName.contains(name))',
        "!device.allowMultipleAllocations",
        'device.driver.split(".").size() == 3 && device.driver.substring(0, 3) == "gpu"',
    ],
)
def test_these_are_true(expression):
    assert cel.compile(expression).matches(DEVICE)


@pytest.mark.parametrize(
    ("expression", "message"),
    [
        (f'{G}.nope == "x"', "no such key: nope"),
        ('device.attributes["example.com"].nope == "x"', "no such key: nope"),
        (f"{C}.nope == quantity('1')", "no such key: nope"),
        (f"{G}.productName > 3", "no such overload"),
        (f"{G}.minor.compareTo(quantity('1')) == 0", "no such overload"),
        (f"{G}.driverVersion.compareTo(quantity('1')) == 0", "no such overload"),
        (f"{G}.minor", "CEL result of type int could not be converted to bool"),
        (f"{G}.productName", "CEL result of type string could not be converted to bool"),
        ("quantity(device.driver) == quantity('1')", "quantity: invalid value 'gpu.nvidia.com'"),
        ("1 / 0 == 1", "divide by zero"),
        ('quantity("1500m").asInteger() == 1', "cannot convert value to integer"),
    ],
)
def test_these_have_no_value(expression, message):
    with pytest.raises(cel.CelRuntimeError) as caught:
        cel.compile(expression).matches(DEVICE)
    assert str(caught.value).startswith(message)


@pytest.mark.parametrize(
    ("expression", "message"),
    [
        ("device.nope == 1", "compilation failed: ERROR: <input>:1:7: undeclared reference to 'device.nope'"),
        ("device.driver", "must evaluate to bool or the unknown type, not string"),
        ("1 + 1", "must evaluate to bool or the unknown type, not int"),
        ("nope(1)", "compilation failed: ERROR: <input>:1:5: undeclared reference to 'nope'"),
        (f"{C}.memory > 3", "compilation failed: ERROR: <input>:1:42: found no matching overload for '_>_'"),
        ('device.driver.matches("(")', "compilation failed: ERROR: invalid matches argument '('"),
        ("", "compilation failed: ERROR: <input>:1:1: Syntax error"),
        ("a" * 100_000, "compilation failed: ERROR: <input>:1:1: undeclared reference"),
        ("(" * 2000, "compilation failed: "),
    ],
)
def test_these_do_not_compile(expression, message):
    assert (cel.check(expression) or "").startswith(message)
    with pytest.raises(cel.CelError):
        cel.compile(expression)


def test_a_huge_loop_ends_with_an_error():
    numbers = f"[{', '.join('1' for _ in range(200))}]"
    nested = f"{numbers}.all(a, {numbers}.all(b, {numbers}.all(c, a + b + c > 0)))"
    with pytest.raises(cel.CelRuntimeError):
        cel.compile(nested).matches(DEVICE)


def test_evaluation_leaves_the_device_as_it_was():
    before = {key: dict(value) for key, value in DEVICE.items() if isinstance(value, dict)}
    cel.compile('has(device.attributes["example.com"].x) || true').matches(DEVICE)
    assert {key: dict(value) for key, value in DEVICE.items() if isinstance(value, dict)} == before
