from __future__ import annotations

import pytest

from driver.errors import InvalidValueError
from driver.inventory.fake_gpus import build_gpus
from driver.inventory.fake_spec import parse_node
from driver.inventory.faults import NO_FAULTS, Faults, GpuFaults, MigFaults, MigXid, decode_faults, encode_faults
from driver.inventory.profiles import load_products

GPUS = build_gpus(parse_node("h100:4", load_products()), "n1")
U0, U1 = GPUS[0].uuid, GPUS[1].uuid


def decode(text: str) -> Faults:
    return decode_faults(text, GPUS, "faults.yaml")


@pytest.mark.parametrize("key", ["gpu-1", "1", U1])
def test_a_gpu_is_named_by_name_index_or_uuid(key):
    assert decode(f"gpus: {{{key}: {{lost: true}}}}").gpus == {U1: GpuFaults(lost=True)}


@pytest.mark.parametrize("text", ["", "# nothing\n", "{}", "gpus: {}", "nvml: up"])
def test_nothing_is_wrong(text):
    assert decode(text) == NO_FAULTS


def test_everything_is_wrong():
    faults = decode("""
nvml: {slow: 60}
gpus:
  0: {xid: 79, slow: 2.5, not_supported: [memory, minor]}
  gpu-1: {xid: [31, 79], fails: pci}
  gpu-2: {mig: {create_gi: fail-once, create_ci: fail-bare, destroy: in-use, mode: fail, slow: 0.5}}
""")
    assert faults.nvml_slow == 60
    assert faults.of(U0) == GpuFaults(xids=(79,), slow=2.5, not_supported=("memory", "minor"))
    assert faults.of(U1) == GpuFaults(xids=(31, 79), fails="pci")
    mig = MigFaults(create_gi="fail-once", create_ci="fail-bare", destroy="in-use", mode="fail", slow=0.5)
    assert faults.of(GPUS[2].uuid) == GpuFaults(mig=mig)
    assert faults.of(GPUS[3].uuid) == GpuFaults()
    assert decode("nvml: down").nvml_down


@pytest.mark.parametrize(
    ("text", "field"),
    [
        ("[]", "faults.yaml"),
        ("gpu: {}", "faults.yaml: gpu"),
        ("gpus: []", "faults.yaml: gpus"),
        ("gpus: {gpu-9: {}}", "faults.yaml: gpus.gpu-9"),
        ("gpus: {gpu-1: lost}", "faults.yaml: gpus.gpu-1"),
        ("gpus: {gpu-1: {lost: yes please}}", "faults.yaml: gpus.gpu-1.lost"),
        ("gpus: {gpu-1: {lots: true}}", "faults.yaml: gpus.gpu-1.lots"),
        ("gpus: {gpu-1: {xid: fatal}}", "faults.yaml: gpus.gpu-1.xid"),
        ("gpus: {gpu-1: {xid: -1}}", "faults.yaml: gpus.gpu-1.xid"),
        ("gpus: {gpu-1: {xid: true}}", "faults.yaml: gpus.gpu-1.xid"),
        ("gpus: {gpu-1: {slow: -1}}", "faults.yaml: gpus.gpu-1.slow"),
        ("gpus: {gpu-1: {slow: .nan}}", "faults.yaml: gpus.gpu-1.slow"),
        ("gpus: {gpu-1: {slow: 1e9}}", "faults.yaml: gpus.gpu-1.slow"),
        ("gpus: {gpu-1: {not_supported: memory}}", "faults.yaml: gpus.gpu-1.not_supported"),
        ("gpus: {gpu-1: {not_supported: [uuid]}}", "faults.yaml: gpus.gpu-1.not_supported[0]"),
        ("gpus: {gpu-1: {fails: soul}}", "faults.yaml: gpus.gpu-1.fails"),
        ("gpus: {gpu-1: {mig: fail}}", "faults.yaml: gpus.gpu-1.mig"),
        ("gpus: {gpu-1: {mig: {create: fail}}}", "faults.yaml: gpus.gpu-1.mig.create"),
        ("gpus: {gpu-1: {mig: {create_gi: in-use}}}", "faults.yaml: gpus.gpu-1.mig.create_gi"),
        ("gpus: {gpu-1: {mig: {create_ci: true}}}", "faults.yaml: gpus.gpu-1.mig.create_ci"),
        ("gpus: {gpu-1: {mig: {slow: -1}}}", "faults.yaml: gpus.gpu-1.mig.slow"),
        ("nvml: broken", "faults.yaml: nvml"),
        ("nvml: {slow: fast}", "faults.yaml: nvml.slow"),
        ("nvml: {quick: 1}", "faults.yaml: nvml.slow"),
    ],
)
def test_a_bad_file_names_the_field(text, field):
    with pytest.raises(InvalidValueError) as caught:
        decode(text)
    assert caught.value.path == field


def test_a_gpu_may_not_be_named_twice():
    with pytest.raises(InvalidValueError, match="there twice"):
        decode("gpus:\n  gpu-1: {}\n  gpu-1: {lost: true}")
    with pytest.raises(InvalidValueError, match="there twice, under another name"):
        decode("gpus:\n  gpu-1: {}\n  1: {lost: true}")


@pytest.mark.parametrize(
    ("before", "after", "expected"),
    [
        ((), (79,), [79]),
        ((79,), (79,), []),
        ((79,), (79, 79), [79]),
        ((79,), (43, 79), [43]),
        ((79,), (), []),
        ((79,), (48,), [48]),
    ],
)
def test_only_new_xids_are_news(before, after, expected):
    old = Faults(gpus={U0: GpuFaults(xids=before)})
    new = Faults(gpus={U0: GpuFaults(xids=after)})
    assert list(new.new_xids(old)) == [(U0, xid) for xid in expected]


def test_H4_a_gpu_without_event_support_reports_none():
    faults = Faults(gpus={U0: GpuFaults(xids=(79,), not_supported=("events",))})
    assert list(faults.new_xids(NO_FAULTS)) == []


def test_an_xid_in_a_mig_device_is_news_once_and_the_gpu_needs_what_it_asks_for():
    one, other = MigXid(31, "mig-1g10gb-19-0"), MigXid(95, "mig-1g10gb-19-1")
    old = Faults(gpus={U0: GpuFaults(mig_xids=(one,))})
    new = Faults(gpus={U0: GpuFaults(mig_xids=(one, other))})
    assert list(new.new_mig_xids(old)) == [(U0, other)]
    assert list(new.new_mig_xids(new)) == []
    silent = Faults(gpus={U0: GpuFaults(mig_xids=(one,), not_supported=("events",))})
    assert list(silent.new_mig_xids(NO_FAULTS)) == []
    assert new.of(U0).all_xids() == (31, 95)


@pytest.mark.parametrize(
    "faults",
    [
        NO_FAULTS,
        Faults(nvml_down=True),
        Faults(gpus={U0: GpuFaults(mig=MigFaults(create_ci="fail-once", slow=1.5))}),
        Faults(gpus={U0: GpuFaults(xids=(79,), mig_xids=(MigXid(31, "mig-1g10gb-19-0"),))}),
        Faults(
            nvml_slow=2.5, gpus={U0: GpuFaults(lost=True, xids=(79, 31), slow=1.5, not_supported=("mig",), fails="pci")}
        ),
    ],
)
def test_what_is_written_is_read_back(faults):
    assert decode(encode_faults(faults)) == faults
