from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from driver.model import version

# The grammar of semver.org, 2.0.0, as its authors suggest to check it.
SEMVER = re.compile(
    r"(0|[1-9]\d*)\.(0|[1-9]\d*)\.(0|[1-9]\d*)"
    r"(-(0|[1-9]\d*|\d*[a-zA-Z-][0-9a-zA-Z-]*)(\.(0|[1-9]\d*|\d*[a-zA-Z-][0-9a-zA-Z-]*))*)?"
    r"(\+[0-9a-zA-Z-]+(\.[0-9a-zA-Z-]+)*)?",
    re.ASCII,
)


@pytest.mark.parametrize(
    ("raw", "semver"),
    [
        ("580.105.08", "580.105.8"),
        ("570.169", "570.169.0"),
        ("13.0", "13.0.0"),
        ("9", "9.0.0"),
        ("6.19.14.31400000", "6.19.14+31400000"),  # A1
        ("v1.2.3", "1.2.3"),
        ("  550.54 ", "550.54.0"),
        ("580.105.08-beta", "580.105.8+beta"),
        ("", "0.0.0"),
        ("unknown", "0.0.0+unknown"),
        ("000.001.0002", "0.1.2"),
        ("1..2", "1.0.0+2"),
        (f"{1 << 80}.1", f"{(1 << 64) - 1}.1.0"),
    ],
)
def test_A1_any_raw_version_becomes_semver(raw: str, semver: str) -> None:
    assert version.semver(raw) == semver


@given(st.text(max_size=200) | st.from_regex(r"[0-9]{1,30}(\.[0-9]{1,30}){0,6}[-+ a-z.]{0,9}", fullmatch=True))
def test_whatever_a_driver_says_the_api_server_takes(raw: str) -> None:
    result = version.semver(raw)
    assert SEMVER.fullmatch(result), result
    assert len(result.encode()) <= 64
    assert all(int(part) < 1 << 64 for part in result.partition("+")[0].split("."))


@given(st.integers(0, 999), st.integers(0, 999), st.integers(0, 99))
def test_order_is_kept(major: int, minor: int, patch: int) -> None:
    assert version.semver(f"{major}.{minor:03}.{patch:02}") == f"{major}.{minor}.{patch}"


@pytest.mark.parametrize(("number", "text"), [(13020, "13.2"), (12080, "12.8"), (13000, "13.0"), (0, "0.0")])
def test_nvmls_cuda_version(number: int, text: str) -> None:
    assert version.cuda_version(number) == text
