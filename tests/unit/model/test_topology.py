from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from driver.model.device import Gpu, NvLink
from driver.model.topology import nvlink_domains


def gpu(name: str, *peers: str, switched: bool = False) -> Gpu:
    return Gpu(uuid=name, index=0, nvlink=NvLink(peers=tuple((peer, 4) for peer in peers), switched=switched))


def test_a_gpu_without_nvlink_is_a_domain_of_its_own_named_by_its_uuid() -> None:
    domains = nvlink_domains([gpu("GPU-a"), gpu("GPU-b")])
    assert {uuid: (domain.id, domain.size) for uuid, domain in domains.items()} == {
        "GPU-a": ("GPU-a", 1),
        "GPU-b": ("GPU-b", 1),
    }


def test_bridges_make_pairs_and_a_switch_makes_one_domain() -> None:
    pairs = nvlink_domains([gpu("a", "b"), gpu("b", "a"), gpu("c", "d"), gpu("d", "c")])
    assert pairs["a"] == pairs["b"] != pairs["c"] == pairs["d"]
    assert pairs["a"].members == ("a", "b")
    switch = nvlink_domains([gpu(name, switched=True) for name in "abcd"] + [gpu("e")])
    assert switch["a"].members == ("a", "b", "c", "d")
    assert switch["e"].size == 1


def test_links_to_unknown_gpus_and_inactive_links_join_nothing() -> None:
    idle = Gpu(uuid="a", index=0, nvlink=NvLink(peers=(("b", 0), ("gone", 2))))
    assert nvlink_domains([idle, gpu("b")])["a"].size == 1


@given(
    st.lists(st.tuples(st.integers(0, 7), st.integers(0, 7)), max_size=10),
    st.sets(st.integers(0, 7)),
    st.randoms(use_true_random=False),
)
def test_domains_partition_the_gpus_whatever_the_order(
    links: list[tuple[int, int]], switched: set[int], random
) -> None:  # type: ignore[no-untyped-def]
    gpus = [
        Gpu(
            uuid=f"g{n}",
            index=n,
            nvlink=NvLink(
                peers=tuple((f"g{right}", 1) for left, right in links if left == n and right != n),
                switched=n in switched,
            ),
        )
        for n in range(8)
    ]
    domains = nvlink_domains(gpus)
    for one in gpus:
        for member in domains[one.uuid].members:
            assert domains[member] == domains[one.uuid]
        for peer, _ in one.nvlink.peers:
            assert domains[peer] == domains[one.uuid]
    shuffled = list(gpus)
    random.shuffle(shuffled)
    assert nvlink_domains(shuffled) == domains
    assert all(len(domain.id.encode()) <= 64 for domain in domains.values())
