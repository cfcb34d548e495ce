from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from driver.errors import InvalidValueError
from driver.model import names


@pytest.mark.parametrize(
    ("parent", "profile", "profile_id", "start", "name"),
    [
        ("gpu-0", "1g.10gb", 19, 0, "gpu-0-mig-1g10gb-19-0"),
        ("gpu-3", "3g.40gb", 9, 4, "gpu-3-mig-3g40gb-9-4"),
        ("gpu-0", "1g.10gb+me", 20, 1, "gpu-0-mig-1g10gb-me-20-1"),
    ],
)
def test_mig_names_follow_the_peers_scheme(parent: str, profile: str, profile_id: int, start: int, name: str) -> None:
    assert names.mig_name(parent, profile, profile_id, start) == name


def test_P1_a_gpu_without_a_minor_number_is_named_by_its_uuid() -> None:
    assert names.gpu_name(3, "GPU-x") == "gpu-3"
    named = names.gpu_name(None, "GPU-5f3c8a1e-0000-4000-8000-ABCDEF012345")
    assert named == "gpu-5f3c8a1e-0000-4000-8000-abcdef012345"
    assert names.is_dns_label(named)


@given(st.text(max_size=300))
def test_any_text_becomes_a_dns_label(text: str) -> None:
    assert names.is_dns_label(names.to_dns_label(text))


@given(st.text(min_size=64, max_size=100, alphabet="ab"), st.text(min_size=64, max_size=100, alphabet="ab"))
def test_long_texts_stay_distinct_when_cut(left: str, right: str) -> None:
    assert (names.to_dns_label(left) == names.to_dns_label(right)) == (left == right)


@pytest.mark.parametrize("good", ["3f0c5a2e-11aa-4b0a-9d7e-0a1b2c3d4e5f", "abc", "0123456789abcdef", "a.b_c-d"])
def test_uids_of_claims_and_static_pods_are_taken(good: str) -> None:
    assert names.check_uid(good) == good


@pytest.mark.parametrize("bad", ["", ".", "..", "../x", "a/b", "a\x00", "a..b", "-x", "x" * 129, "a b", "ä", "a\n"])
def test_what_could_leave_the_directory_is_refused(bad: str) -> None:
    with pytest.raises(InvalidValueError, match=r"claims\[0\]\.uid"):
        names.check_uid(bad, "claims[0].uid")


@pytest.mark.parametrize(
    "bad", ["", "x", "B98A178B-5BE9-4EA2-99FC-1977135F03CC", "{b98a178b-5be9-4ea2-99fc-1977135f03cc}"]
)
def test_share_ids_are_lower_case_uuids(bad: str) -> None:
    with pytest.raises(InvalidValueError, match="lower case"):
        names.check_share_id(bad)


def test_cdi_ids_of_two_shares_differ() -> None:
    assert names.cdi_id("u", "gpu-0") == "k8s.gpu.nvidia.com/claim=u-gpu-0"
    assert names.cdi_id("u", "gpu-0", "s1") != names.cdi_id("u", "gpu-0", "s2")


@pytest.mark.parametrize(
    ("raw", "normal"),
    [("00000000:65:00.0", "0000:65:00.0"), ("00010000:0B:00.0", "00010000:0b:00.0"), ("0000:65:00.0", "0000:65:00.0")],
)
def test_pci_bus_ids_lose_only_their_four_leading_zeros(raw: str, normal: str) -> None:
    assert names.pci_bus_id(raw) == normal


@pytest.mark.parametrize("share", [None, "b98a178b-5be9-4ea2-99fc-1977135f03cc"])
@pytest.mark.parametrize("device", ["gpu-0", "gpu-0-mig-1g10gb-19-0", "gpu-x"])
def test_a_cdi_name_tells_the_device_and_its_share(device: str, share: str | None) -> None:
    assert names.split_share(names.cdi_device("u", device, share).removeprefix("u-")) == (device, share)


@pytest.mark.parametrize("name", ["", "b98a178b-5be9-4ea2-99fc-1977135f03cc", "-b98a178b-5be9-4ea2-99fc-1977135f03cc"])
def test_a_share_of_no_device_is_none(name: str) -> None:
    assert names.split_share(name) == (name, None)
