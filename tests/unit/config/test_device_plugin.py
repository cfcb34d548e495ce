from __future__ import annotations

import math

import pytest

from driver.config.device_plugin import NamePattern, decode_config
from driver.errors import InvalidValueError

GPU = {"name": "nvidia.com/gpu", "replicas": 4}


def test_a_config_as_people_have_it():
    config = decode_config(
        {
            "version": "v1",
            "flags": {
                "migStrategy": "mixed",
                "failOnInitError": True,
                "nvidiaDriverRoot": "/run/nvidia/driver",
                "gdsEnabled": None,
                "plugin": {
                    "passDeviceSpecs": False,
                    "deviceListStrategy": ["envvar", "cdi-annotations"],
                    "deviceIDStrategy": "index",
                    "cdiAnnotationPrefix": "example.com/",
                },
                "gfd": {"oneshot": False, "noTimestamp": True, "sleepInterval": "1m30s"},
            },
            "resources": {"gpus": [{"pattern": "A100-SXM4-*", "name": "a100"}], "mig": None},
            "sharing": {"timeSlicing": {"failRequestsGreaterThanOne": True, "resources": [GPU]}},
        },
        "c",
    )
    assert config.flags.mig_strategy == "mixed"
    assert config.flags.device_list_strategy == ("envvar", "cdi-annotations")
    assert config.flags.device_id_strategy == "index"
    assert config.flags.cdi_annotation_prefix == "example.com/"
    assert config.flags.gfd == {"oneshot": False, "no_timestamp": True, "sleep_interval": 90.0}
    assert config.gpus == (NamePattern(pattern="A100-SXM4-*", name="nvidia.com/a100"),)
    assert config.sharing.kind == "time-slicing"
    assert config.sharing.fail_requests_greater_than_one
    assert [one.split(": ")[1] for one in config.flags.unused][:2] == [
        "flags.failOnInitError",
        "flags.nvidiaDriverRoot",
    ]


def test_an_empty_config_is_the_default():
    config = decode_config(None, "c")
    assert config.flags.device_list_strategy == ("cdi-cri",)
    assert (config.flags.mig_strategy, config.flags.shared_devices_allocation_policy, config.sharing.kind) == (
        "none",
        "",
        "none",
    )
    assert config == decode_config({"version": "v1"}, "c")


def test_flags_over_environment_over_file_over_default():
    document = {"flags": {"migStrategy": "single", "plugin": {"deviceListStrategy": "envvar"}}}
    environ = {"MIG_STRATEGY": "mixed", "DEVICE_LIST_STRATEGY": "envvar,cdi-cri", "PASS_DEVICE_SPECS": "TRUE"}
    file = decode_config(document, "c").flags
    assert (file.mig_strategy, file.device_list_strategy) == ("single", ("envvar",))
    env = decode_config(document, "c", environ=environ).flags
    assert (env.mig_strategy, env.device_list_strategy) == ("mixed", ("envvar", "cdi-cri"))
    assert env.pass_device_specs
    cli = decode_config(
        document, "c", environ=environ, cli={"mig_strategy": "none", "pass_device_specs": "false"}
    ).flags
    assert (cli.mig_strategy, cli.pass_device_specs) == ("none", False)


@pytest.mark.parametrize(
    ("environ", "field", "value"),
    [
        ({"GFD_MIG_STRATEGY": "single"}, "mig_strategy", "single"),
        ({"GFD_MIG_STRATEGY": "single", "MIG_STRATEGY": "mixed"}, "mig_strategy", "mixed"),
        ({"GFD_NO_TIMESTAMP": "1"}, "gfd", {"no_timestamp": True}),
        ({"GFD_SLEEP_INTERVAL": "infinite"}, "gfd", {"sleep_interval": math.inf}),
    ],
)
def test_the_variables_of_feature_discovery(environ, field, value):
    assert getattr(decode_config(None, "c", environ=environ).flags, field) == value


def test_imex_channels_by_file_and_variable():
    document = {"imex": {"channelIDs": [0], "required": True}}
    file = decode_config(document, "c")
    assert (file.imex_channels, file.imex_required) == ((0,), True)
    environ = {"IMEX_CHANNEL_IDS": "0", "IMEX_REQUIRED": "false"}
    for found in (decode_config(document, "c", environ=environ), decode_config(None, "c", environ=environ)):
        assert (found.imex_channels, found.imex_required) == ((0,), False)
    assert decode_config({"imex": {"channelIDs": None}}, "c").imex_channels == ()


def test_mps_fails_requests_for_several_unless_told_otherwise():
    assert decode_config({"sharing": {"mps": {"resources": [GPU]}}}, "c").sharing.fail_requests_greater_than_one
    relaxed = {"failRequestsGreaterThanOne": False, "resources": [GPU]}
    assert not decode_config({"sharing": {"mps": relaxed}}, "c").sharing.fail_requests_greater_than_one


@pytest.mark.parametrize(
    ("flag", "value", "why"),
    [("failOnInitError", False, "this driver always waits"), ("mpsRoot", "/run/nvidia/mps", "MPS daemons have their")],
)
def test_what_has_no_effect_is_named(flag, value, why):
    (note,) = decode_config({"flags": {"gdsEnabled": True, flag: value}}, "c").flags.unused
    assert note.startswith(f"c: flags.{flag}: {why}")


@pytest.mark.parametrize(
    ("strategy", "expected"),
    [("cdi-cri", {"gds", "mofed", "imex"}), ("cdi-annotations", {"gds", "mofed", "imex"}), ("envvar,cdi-cri", set())],
)
def test_what_is_beside_gpus_is_ours_to_add_where_no_runtime_of_nvidias_does(strategy, expected):
    document = {"flags": {"gdsEnabled": True, "mofedEnabled": True}, "imex": {"channelIDs": [0]}}
    assert decode_config(document, "c", cli={"device_list_strategy": strategy}).extras == expected


@pytest.mark.parametrize(
    ("devices", "expected"),
    [
        ("all", None),
        (3, 3),
        ([0, "1", "0:1"], ("0", "1", "0:1")),
        (["GPU-b1028956-cfa2-0990-bf4a-5da9abb51763"], ("GPU-b1028956-cfa2-0990-bf4a-5da9abb51763",)),
        (["MIG-b1028956-cfa2-0990-bf4a-5da9abb51763"], ("MIG-b1028956-cfa2-0990-bf4a-5da9abb51763",)),
    ],
)
def test_which_devices_are_shared(devices, expected):
    document = {"sharing": {"timeSlicing": {"resources": [{**GPU, "devices": devices}]}}}
    assert decode_config(document, "c").sharing.resources[0].devices == expected


@pytest.mark.parametrize(
    ("pattern", "word", "matches"),
    [
        ("*", "anything", True),
        ("A100", "A100", True),
        ("A100", "NVIDIA A100", False),
        ("*A100*", "NVIDIA A100-SXM4", True),
        ("A.00", "A100", False),
        ("1g.10gb", "1g.10gb+me", False),
    ],
)
def test_patterns_are_anchored(pattern, word, matches):
    assert NamePattern(pattern=pattern, name="n").matches(word) is matches


def test_another_prefix():
    config = decode_config({"flags": {"resourceNamePrefix": "example.com"}, "resources": {"gpus": [
        {"pattern": "*", "name": "gpu"}]}}, "c")  # fmt: skip
    assert config.gpus[0].name == "example.com/gpu"


def slicing(**changes: object) -> dict[str, object]:
    return {"sharing": {"timeSlicing": {"resources": [{**GPU, **changes}]}}}


@pytest.mark.parametrize(
    ("document", "words"),
    [
        ("text", "c: invalid value"),
        ({"version": "v2"}, "c: version: invalid value 'v2': must be v1"),
        ({"flag": {}}, "c: flag: invalid value {}: unknown field; did you mean 'flags'?"),
        ({"flags": {"migStrategie": "none"}}, "c: flags.migStrategie"),
        ({"flags": {"plugin": {"passDeviceSpec": True}}}, "c: flags.plugin.passDeviceSpec"),
        ({"flags": {"gfd": {"interval": "1s"}}}, "c: flags.gfd.interval"),
        ({"flags": {"migStrategy": "all"}}, "must be one of none, single, mixed"),
        ({"flags": {"migStrategy": None, "failOnInitError": "true"}}, "c: flags.failOnInitError: invalid value 'true'"),
        ({"flags": {"plugin": {"deviceListStrategy": []}}}, "must be one or a list of"),
        ({"flags": {"plugin": {"deviceListStrategy": ["env"]}}}, "must be one of envvar"),
        ({"flags": {"plugin": {"deviceListStrategy": {"a": 1}}}}, "must be one or a list of"),
        ({"flags": {"plugin": {"cdiAnnotationPrefix": "cdi"}}}, "a DNS subdomain and a slash"),
        ({"flags": {"plugin": []}}, "c: flags.plugin"),
        ({"flags": {"gfd": {"sleepInterval": 60}}}, "must be a duration"),
        ({"flags": {"deviceDiscoveryStrategy": "tegra"}}, "must be one of auto, nvml"),
        ({"flags": {"nvidiaDriverRoot": "run"}}, "must be an absolute path"),
        ({"flags": {"resourceNamePrefix": "x.kubernetes.io"}}, "none of kubernetes.io"),
        ({"resources": {"gpu": []}}, "c: resources.gpu"),
        ({"resources": {"gpus": {}}}, "must be a list"),
        ({"resources": {"gpus": [{"pattern": "*"}]}}, "c: resources.gpus[0].name"),
        ({"resources": {"gpus": [{"pattern": "*", "name": "GPU"}]}}, "must be nvidia.com/<name>"),
        ({"resources": {"gpus": [{"pattern": "*", "name": "amd.com/gpu"}]}}, "must be nvidia.com/<name>"),
        ({"resources": {"gpus": [{"pattern": "*", "name": "x" * 64}]}}, "at most 63"),
        ({"sharing": {"timeSlicing": {}, "mps": {}}}, "only one way to share"),
        ({"sharing": {"timeslicing": {}}}, "did you mean 'timeSlicing'?"),
        ({"sharing": {"timeSlicing": {}}}, "c: sharing.timeSlicing.resources"),
        ({"sharing": {"timeSlicing": {"resources": []}}}, "at least one"),
        (slicing(replicas=1), "c: sharing.timeSlicing.resources[0].replicas: invalid value 1"),
        (slicing(replicas=True), "replicas"),
        (slicing(replicas="2"), "replicas"),
        (slicing(name="a/b/c"), "must be nvidia.com/<name>"),
        (slicing(rename="UPPER"), "resources[0].rename"),
        (slicing(devices="some"), "must be all, a number"),
        (slicing(devices=0), "resources[0].devices"),
        (slicing(devices=[]), "must be all, a number"),
        (slicing(devices=["gpu-0"]), "resources[0].devices[0]"),
        (slicing(devices=[0, "0"]), "resources[0].devices[1]"),
        (slicing(devices=[True]), "resources[0].devices[0]"),
        (slicing(device="all"), "did you mean 'devices'?"),
        ({"sharing": {"timeSlicing": {"resources": [GPU, GPU]}}}, "is shared already by c: sharing.timeSlicing.res"),
        ({"sharing": {"timeSlicing": {"strategy": "round-robin", "resources": [GPU]}}}, "there are no strategies"),
        ({"health": {"ignoredXIDs": [13], "criticalXIDs": [13]}}, "must not be in ignoredXIDs too"),
        ({"health": {"ignoredXIDs": "all"}}, "must be a list of XIDs"),
        ({"imex": {"channelIDs": [1]}}, "must be [] or [0]"),
    ],
)
def test_errors_name_the_path(document, words):
    with pytest.raises(InvalidValueError) as caught:
        decode_config(document, "c")
    assert words in str(caught.value)
    assert str(caught.value).startswith("c: ")


@pytest.mark.parametrize(
    ("environ", "cli", "words"),
    [
        ({"MIG_STRATEGY": "some"}, {}, "environment variable MIG_STRATEGY"),
        ({"PASS_DEVICE_SPECS": "yes"}, {}, "environment variable PASS_DEVICE_SPECS"),
        ({"DEVICE_LIST_STRATEGY": "envvar,"}, {}, "environment variable DEVICE_LIST_STRATEGY"),
        ({"IMEX_CHANNEL_IDS": "0,1"}, {}, "environment variable IMEX_CHANNEL_IDS"),
        ({"IMEX_REQUIRED": "yes"}, {}, "environment variable IMEX_REQUIRED"),
        ({}, {"mig_strategy": "some"}, "--mig-strategy"),
        ({}, {"shared_devices_allocation_policy": "spread"}, "--shared-devices-allocation-policy"),
    ],
)
def test_errors_name_the_variable_or_flag(environ, cli, words):
    with pytest.raises(InvalidValueError) as caught:
        decode_config(None, "c", environ=environ, cli=cli)
    assert words in str(caught.value)
