from __future__ import annotations

import argparse
import dataclasses
from pathlib import Path

import pytest

from driver.errors import InvalidValueError, SettingsError
from driver.model.choice import GpuChoice
from driver.model.names import UNIX_PATH_MAX
from driver.model.shares import ShareMode, Shares
from driver.settings import LONGEST_SOCKET, Settings, add_flags, describe, load_settings
from driver.settings.options import Address, options

NODE = {"node_name": "n1"}


def load(flags=None, environ=None) -> Settings:
    return load_settings({**NODE, **(flags or {})}, environ or {})


def refused(flags=None, environ=None) -> InvalidValueError:
    with pytest.raises(InvalidValueError) as caught:
        load(flags, environ)
    return caught.value


def in_file(tmp_path, text: str) -> dict[str, str]:
    file = tmp_path / "settings.yaml"
    file.write_text(text)
    return {"config": str(file)}


def test_defaults_are_those_of_a_usual_node():
    settings = load()
    assert settings.kubelet_root == Path("/var/lib/kubelet")
    assert settings.cdi_dir == Path("/var/run/cdi")
    assert settings.state == Path("/var/lib/kubelet/plugins/gpu.nvidia.com")
    assert settings.driver_root == Path("/")
    assert settings.http_address == Address("", 8080)
    assert not settings.fake
    assert describe(settings) == {"node_name": "n1"}


def test_the_later_source_wins(tmp_path):
    flags = in_file(tmp_path, "log_level: debug\nlog_format: json\ncdi_dir: /from/file\n")
    environ = {"GPU_DRA_LOG_FORMAT": "text", "GPU_DRA_CDI_DIR": "/from/env"}
    settings = load({**flags, "cdi_dir": "/from/flag"}, environ)
    assert (settings.log_level, settings.log_format, settings.cdi_dir) == ("debug", "text", Path("/from/flag"))
    assert settings.source("log_level") == f"{flags['config']}: log_level"
    assert settings.source("log_format") == "environment variable GPU_DRA_LOG_FORMAT"
    assert settings.source("cdi_dir") == "--cdi-dir"
    assert settings.source("sys_root") == "sys_root"


@pytest.mark.parametrize(
    ("text", "dynamic_mig", "shares"),
    [
        ("{}", "off", "disabled"),
        ("dynamic_mig: off\nshares: 4", "off", "4"),  # YAML's own words and numbers
        ("dynamic_mig: [0, '*L4*']\nshares: memory", "0,*L4*", "memory"),
        ("dynamic_mig: all", "all", "disabled"),
    ],
)
def test_partitions_and_shares_in_a_file(tmp_path, text, dynamic_mig, shares):
    settings = load(in_file(tmp_path, text))
    assert (str(settings.dynamic_mig), str(settings.shares)) == (dynamic_mig, shares)
    assert {"dynamic_mig", "shares"} & describe(settings).keys() == {
        name for name, value in (("dynamic_mig", dynamic_mig), ("shares", shares)) if value not in ("off", "disabled")
    }


@pytest.mark.parametrize(
    ("text", "name", "value"),
    [
        ("claim_status: off", "claim_status", "off"),
        ("device_metadata: on", "device_metadata", "on"),
        ("device_plugin: no", "device_plugin", "off"),
        ("labels: off", "labels", "off"),
        ("mps: 'off'", "mps", "off"),
        ("pass_device_specs: true", "pass_device_specs", "true"),
        ("pass_device_specs: 'False'", "pass_device_specs", "False"),
    ],
)
def test_switches_in_a_file_need_no_quotes(tmp_path, text, name, value):
    assert getattr(load(in_file(tmp_path, text)), name) == value


@pytest.mark.parametrize(("text", "name"), [("labels: on", "labels"), ("log_level: off", "log_level")])
def test_a_switch_that_a_setting_has_not_is_refused(tmp_path, text, name):
    assert refused(in_file(tmp_path, text)).path.endswith(f": {name}")


def test_the_environment_may_name_the_file(tmp_path):
    file = in_file(tmp_path, "pod_uid: abc")["config"]
    assert load(environ={"GPU_DRA_CONFIG": file}).pod_uid == "abc"


@pytest.mark.parametrize("text", ["", "# nothing\n", "{}"])
def test_an_empty_file_sets_nothing(tmp_path, text):
    assert load(in_file(tmp_path, text)) == load()


def test_K4_every_kubelet_path_follows_from_one_setting():
    settings = load({"kubelet_root": "/data/kubelet"})
    derived = [
        settings.plugins_dir,
        settings.registry_dir,
        settings.device_plugins_dir,
        settings.pod_resources_socket,
        settings.state,
        settings.faults,
    ]
    assert [str(path) for path in derived] == [
        "/data/kubelet/plugins",
        "/data/kubelet/plugins_registry",
        "/data/kubelet/device-plugins",
        "/data/kubelet/pod-resources/kubelet.sock",
        "/data/kubelet/plugins/gpu.nvidia.com",
        "/data/kubelet/plugins/gpu.nvidia.com/faults.yaml",
    ]


def test_derived_paths_can_be_set():
    settings = load({"state_dir": "/s", "faults_file": "/f.yaml", "boot_id_file": "/b"})
    assert (settings.state, settings.faults, settings.boot_id) == (Path("/s"), Path("/f.yaml"), Path("/b"))
    assert load({"proc_root": "/host/proc"}).boot_id == Path("/host/proc/sys/kernel/random/boot_id")


@pytest.mark.parametrize(
    ("name", "value", "parsed"),
    [
        ("nvml_timeout", "500ms", 0.5),
        ("nvml_timeout", "2.5", 2.5),
        ("resync_interval", "5m", 300.0),
        ("resync_interval", "24h", 86400.0),
        ("http_address", "127.0.0.1:0", Address("127.0.0.1", 0)),
        ("http_address", "[::1]:9400", Address("::1", 9400)),
        ("http_address", "", None),
        ("container_runtime_configs", "/a, /b", (Path("/a"), Path("/b"))),
        ("container_runtime_configs", "", ()),
        ("dev_root", "", None),
        ("profiles_dir", "relative", Path("relative").absolute()),
        ("dynamic_mig", "all", GpuChoice(("*",))),
        ("dynamic_mig", "0,*L4*", GpuChoice(("0", "*L4*"))),
        ("shares", "unlimited", Shares(ShareMode.UNLIMITED)),
        ("shares", "4", Shares(ShareMode.COUNTED, 4)),
    ],
)
def test_values(name, value, parsed):
    assert getattr(load({name: value}), name) == parsed


@pytest.mark.parametrize(
    ("name", "value", "allowed"),
    [
        ("node_name", "Node_1", "DNS subdomain"),
        ("dynamic_mig", "on,off", "'off' doesn't go with others"),
        ("shares", "0", "a number of shares from 1 to 1000"),
        ("kubelet_root", "var/lib/kubelet", "absolute path"),
        ("kubelet_root", "", "absolute path"),
        ("cdi_dir", "/run/../etc", "without '..'"),
        ("cdi_dir", "/run/\0", "one line"),
        ("pod_uid", "../../etc", "pod's UID"),
        ("inventory", "Fake", "did you mean 'fake'"),
        ("log_level", "loud", "one of debug, info, warning, error"),
        ("log_format", "xml", "one of text, json"),
        ("nvml_timeout", "0", "from 0.01s to 600s"),
        ("nvml_timeout", "-1s", "from 0.01s to 600s"),
        ("nvml_timeout", "nan", "from 0.01s to 600s"),
        ("nvml_timeout", "1d", "such as 10s"),
        ("nvml_timeout", "", "such as 10s"),
        ("http_address", "8080", "HOST:PORT"),
        ("http_address", ":65536", "HOST:PORT"),
        ("http_address", "http://x:80", "HOST:PORT"),
        ("http_address", "::1:80", "HOST:PORT"),
        ("container_runtime_configs", "/a,b", "absolute path"),
    ],
)
def test_a_bad_flag_is_named(name, value, allowed):
    error = refused({name: value})
    assert error.path == f"--{name.replace('_', '-')}"
    assert allowed in error.allowed


def test_a_bad_variable_is_named():
    assert refused(environ={"GPU_DRA_LOG_LEVEL": "loud"}).path == "environment variable GPU_DRA_LOG_LEVEL"


@pytest.mark.parametrize(
    ("text", "key", "allowed"),
    [
        ("kubelet_rot: /x", "kubelet_rot", "did you mean 'kubelet_root'"),
        ("kubelet-root: /x", "kubelet-root", "did you mean 'kubelet_root'"),
        ("config: /x", "config", "unknown setting"),
        ("sources: {}", "sources", "unknown setting"),
        ("1: 2", "1", "unknown setting"),
        ("cdi_dir: 3", "cdi_dir", "must be a string"),
        ("cdi_dir: [/x]", "cdi_dir", "must be a string"),
        ("cdi_dir:", "cdi_dir", "must be a string"),
        ("nvml_timeout: true", "nvml_timeout", "duration"),
        ("nvml_timeout: [1]", "nvml_timeout", "duration"),
        ("nvml_timeout: .inf", "nvml_timeout", "duration"),
        ("nvml_timeout: 601", "nvml_timeout", "0.01s to 600s"),
        ("pod_uid: 12345", "pod_uid", "put it in quotes"),
        ("log_level: 3", "log_level", "one of"),
        ("http_address: 8080", "http_address", "must be a string"),
        ("container_runtime_configs: {}", "container_runtime_configs", "list of absolute paths"),
        ("container_runtime_configs: [3]", "container_runtime_configs", "must be a string"),
        ("profiles_dir: [x]", "profiles_dir", "must be a string"),
    ],
)
def test_a_bad_entry_of_the_file_is_named(tmp_path, text, key, allowed):
    flags = in_file(tmp_path, text)
    error = refused(flags)
    assert error.path == f"{flags['config']}: {key}"
    assert allowed in error.allowed


def test_all_that_is_wrong_is_told_at_once(tmp_path):
    flags = {**in_file(tmp_path, "gpu: h100\nlog_level: loud\nlabels: off\n"), "inventory": "real", "gpus": "h100"}
    with pytest.raises(SettingsError) as caught:
        load(flags, {"GPU_DRA_RESYNC": "1s"})
    first, *others = str(caught.value).split("\n  ")
    assert first == "4 settings are wrong:"
    assert [one.partition(": invalid value ")[0] for one in others] == [
        f"{flags['config']}: gpu",
        f"{flags['config']}: log_level",
        "environment variable GPU_DRA_RESYNC",
        "--inventory",
    ]
    assert "did you mean 'gpus'" in others[0]


@pytest.mark.parametrize("text", ["- a", "text", "3"])
def test_the_file_is_a_mapping(tmp_path, text):
    assert "mapping" in refused(in_file(tmp_path, text)).allowed


def test_a_file_that_is_no_yaml_is_named_with_the_line(tmp_path):
    flags = in_file(tmp_path, "a: b\n  c: [\n")
    assert refused(flags).path.startswith(f"{flags['config']}:2:")


def test_a_key_may_be_there_once(tmp_path):
    assert "twice" in str(refused(in_file(tmp_path, "pod_uid: a\npod_uid: b\n")))


def test_a_missing_file_is_named(tmp_path):
    assert refused({"config": str(tmp_path / "none")}).path == str(tmp_path / "none")


def test_values_of_the_file_have_their_types(tmp_path):
    flags = in_file(tmp_path, "nvml_timeout: 3\nresync_interval: 30s\ncontainer_runtime_configs: [/a, /b]\ndev_root:\n")
    settings = load(flags)
    assert (settings.nvml_timeout, settings.resync_interval, settings.dev_root) == (3.0, 30.0, None)
    assert settings.container_runtime_configs == (Path("/a"), Path("/b"))


def test_unknown_variables_of_ours_are_refused_with_the_nearest():
    error = refused(environ={"GPU_DRA_KUBELET_ROT": "/x"})
    assert error.path == "environment variable GPU_DRA_KUBELET_ROT"
    assert "'GPU_DRA_KUBELET_ROOT'" in error.allowed
    assert "did you mean" not in refused(environ={"GPU_DRA_ZZZ": "1"}).allowed


@pytest.mark.parametrize(
    "name",
    [
        "GPU_DRA_SERVICE_HOST",  # a Service named gpu-dra
        "GPU_DRA_SERVICE_PORT_METRICS",
        "GPU_DRA_PORT",
        "GPU_DRA_PORT_8080_TCP_ADDR",
        "GPU_DRA_METRICS_SERVICE_HOST",  # one named gpu-dra-metrics
        "GPU_DRA_METRICS_PORT_8080_TCP",
        "GPU_DRA_VENV",
        "GPU_DRA_PYTHON",
        "GPU_DRA_MEMORY_LIMIT_0",
        "GPU_DRAGON",
        "PATH",
    ],
)
def test_variables_that_kubernetes_sets_are_none_of_ours(name):
    assert load(environ={name: "tcp://10.0.0.1:8080"}) == load()


@pytest.mark.parametrize(
    ("flags", "fake"),
    [
        ({}, False),
        ({"gpus": "h100:8"}, True),
        ({"inventory": "fake", "gpus": "h100:8"}, True),
        ({"inventory": "nvml"}, False),
    ],
)
def test_which_inventory(flags, fake):
    assert load(flags).fake is fake


@pytest.mark.parametrize(
    ("flags", "source"),
    [
        ({"inventory": "nvml", "gpus": "h100"}, "--gpus"),
        ({"inventory": "fake"}, "--inventory"),
        ({"context": "prod"}, "--context"),
        ({"kubelet_root": "/" + "k" * 100}, "--kubelet-root"),
    ],
)
def test_what_does_not_go_together_is_refused(flags, source):
    assert refused(flags).path == source


def test_the_longest_kubelet_root_has_room_for_its_sockets():
    length = UNIX_PATH_MAX - len(LONGEST_SOCKET)
    assert len(bytes(load({"kubelet_root": "/" + "k" * (length - 1)}).kubelet_root)) == length
    assert "a Unix socket's path holds 107" in refused({"kubelet_root": "/" + "k" * length}).allowed
    assert str(length) in refused({"kubelet_root": "/" + "ü" * (length // 2 + 1)}).allowed  # bytes count, not letters


@pytest.mark.parametrize(("host", "name"), [("Worker-1.Example.COM", "worker-1.example.com"), ("n1\n", "n1")])
def test_the_node_is_named_after_the_host(monkeypatch, host, name):
    monkeypatch.setattr("platform.node", lambda: host)
    assert load_settings({}, {}).node_name == name


def test_a_host_that_can_be_no_node_needs_a_name(monkeypatch):
    monkeypatch.setattr("platform.node", lambda: "my_host")
    with pytest.raises(InvalidValueError, match="give --node-name"):
        load_settings({}, {})


def test_every_setting_has_its_names_and_help():
    known = options(Settings)
    assert [one.name for one in known] == [
        field.name for field in dataclasses.fields(Settings) if field.name != "sources"
    ]
    for one in known:
        assert one.help
        assert one.flag == f"--{one.name.replace('_', '-')}"
        assert one.env == f"GPU_DRA_{one.name.upper()}"


def test_the_reference_has_every_setting():
    parser = argparse.ArgumentParser()
    add_flags(parser)
    text = parser.format_help()
    for one in options(Settings):
        assert one.flag in text
        assert f"[{one.env}]" in text


def test_flags_are_read_as_given():
    parser = argparse.ArgumentParser()
    add_flags(parser)
    flags = vars(parser.parse_args(["--gpus", "h100:8", "--node-name=n7"]))
    settings = load_settings(flags, {})
    assert (settings.gpus, settings.node_name) == ("h100:8", "n7")


def test_what_differs_is_told():
    settings = load({"gpus": "h100:8", "http_address": ":0", "log_level": "info"})
    assert describe(settings) == {"node_name": "n1", "gpus": "h100:8", "http_address": ":0"}


@pytest.mark.parametrize(
    ("flags", "serves"),
    [
        ({}, False),
        ({"ownership": "dra"}, False),
        ({"ownership": "dra;device-plugin:count=1"}, True),
        ({"ownership_file": "rules.yaml"}, True),
        ({"device_plugin_config": "c.yaml"}, True),
        ({"device_plugin": "on"}, True),
        ({"device_plugin": "off", "ownership_file": "rules.yaml"}, False),
    ],
)
def test_when_the_device_plugin_is_served(flags, serves):
    assert load_settings({"node_name": "n", **flags}, {}).serves_device_plugin is serves


@pytest.mark.parametrize("more", [{"ownership": "device-plugin"}, {"device_plugin_config": "c.yaml"}])
def test_a_device_plugin_that_is_off_owns_nothing(more):
    with pytest.raises(InvalidValueError, match="--device-plugin"):
        load_settings({"node_name": "n", "device_plugin": "off", **more}, {})
