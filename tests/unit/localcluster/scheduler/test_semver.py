from __future__ import annotations

import itertools

import pytest

from driver.localcluster.scheduler import semver

# The order that https://semver.org gives as its example, and more of its rules.
ASCENDING = [
    "0.9.9", "1.0.0-1", "1.0.0-2", "1.0.0-10", "1.0.0-alpha", "1.0.0-alpha.1", "1.0.0-alpha.beta", "1.0.0-beta",
    "1.0.0-beta.2", "1.0.0-beta.11", "1.0.0-rc.1", "1.0.0", "1.0.1", "1.2.0", "1.10.0", "2.0.0",
]  # fmt: skip


@pytest.mark.parametrize(("low", "high"), list(itertools.combinations(ASCENDING, 2)))
def test_precedence(low, high):
    assert semver.compare(semver.parse(low), semver.parse(high)) == -1
    assert semver.compare(semver.parse(high), semver.parse(low)) == 1


def test_build_metadata_takes_no_part():
    assert semver.compare(semver.parse("1.0.0+a"), semver.parse("1.0.0+b")) == 0
    assert str(semver.parse("1.0.0-rc.1+b")) == "1.0.0-rc.1"


@pytest.mark.parametrize(
    "text", ["", "1", "1.2", "1.2.3.4", "01.2.3", "1.2.3-01", "v1.2.3", "1.2.3-", "1.2.3+", "\u0661.2.3"]
)
def test_what_is_no_version(text):
    with pytest.raises(ValueError, match="is not a semantic version"):
        semver.parse(text)


@pytest.mark.parametrize(
    ("loose", "strict"), [("1", "1.0.0"), ("v1.2", "1.2.0"), ("01.02.03", "1.2.3"), ("1.2-rc", "1.2.0-rc"), ("x", "x")]
)
def test_normalize(loose, strict):
    assert semver.normalize(loose) == strict
