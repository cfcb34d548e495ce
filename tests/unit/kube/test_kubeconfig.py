from __future__ import annotations

import base64
from typing import TYPE_CHECKING, Any

import pytest
import yaml

from driver.errors import SettingsError
from driver.kube.kubeconfig import load

if TYPE_CHECKING:
    from pathlib import Path


def config(*, cluster: dict[str, Any] | None = None, user: dict[str, Any] | None = None) -> dict[str, Any]:
    return {
        "current-context": "one",
        "contexts": [
            {"name": "one", "context": {"cluster": "c", "user": "u"}},
            {"name": "two", "context": {"cluster": "d"}},
        ],
        "clusters": [
            {"name": "c", "cluster": {"server": "https://c:6443", **(cluster or {})}},
            {"name": "d", "cluster": {"server": "https://d:6443/prefix/"}},
        ],
        "users": [{"name": "u", "user": user or {}}],
    }


def write(tmp_path: Path, value: object) -> Path:
    path = tmp_path / "config"
    path.write_text(yaml.safe_dump(value))
    return path


def b64(text: str) -> str:
    return base64.b64encode(text.encode()).decode()


async def test_the_current_context_and_a_named_one(tmp_path: Path) -> None:
    path = write(tmp_path, config(user={"token": "abc"}))
    assert load(path).server == "https://c:6443"
    assert await load(path).token.bearer() == "abc"
    assert load(path, "two").server == "https://d:6443/prefix"
    assert await load(path, "two").token.bearer() is None


def test_inline_data_is_decoded(tmp_path: Path) -> None:
    user = {"client-certificate-data": b64("cert"), "client-key-data": b64("key")}
    cluster = {
        "certificate-authority-data": b64("ca"),
        "tls-server-name": "api",
        "insecure-skip-tls-verify": True,
        "proxy-url": "http://proxy:3128",
    }
    loaded = load(write(tmp_path, config(cluster=cluster, user=user)))
    assert (loaded.tls.ca_data, loaded.tls.certificate_data, loaded.tls.key_data) == (b"ca", b"cert", b"key")
    assert (loaded.tls.server_name, loaded.tls.verify, loaded.proxy) == ("api", False, "http://proxy:3128")


async def test_paths_are_relative_to_the_file(tmp_path: Path) -> None:
    for name in ("ca", "cert", "key", "token"):
        (tmp_path / name).write_text(name)
    user = {"client-certificate": "cert", "client-key": str(tmp_path / "key"), "tokenFile": "token"}
    loaded = load(write(tmp_path, config(cluster={"certificate-authority": "ca"}, user=user)))
    assert loaded.tls.ca_file == tmp_path / "ca"
    assert (loaded.tls.certificate_file, loaded.tls.key_file) == (tmp_path / "cert", tmp_path / "key")
    assert await loaded.token.bearer() == "token"


@pytest.mark.parametrize(
    ("user", "field"),
    [
        ({"token": 7}, "token must be a string"),
        ({"tokenFile": "gone"}, "tokenFile"),
        ({"client-certificate-data": "%%%", "client-key-data": ""}, "client-certificate-data is not base64"),
        ({"client-certificate-data": b64("x")}, "pairs"),
        ({"auth-provider": {"name": "gcp"}}, "auth-provider is not supported"),
        ({"username": "me", "password": "s3cret"}, "username is not supported"),
        ({"exec": {"command": "x"}}, "exec.apiVersion is missing"),
        ({"exec": {"apiVersion": "client.authentication.k8s.io/v1alpha1", "command": "x"}}, "v1alpha1"),
        ({"exec": {"apiVersion": "client.authentication.k8s.io/v1"}}, "exec.command is missing"),
        (
            {
                "exec": {
                    "apiVersion": "client.authentication.k8s.io/v1",
                    "command": "x",
                    "interactiveMode": "Always",
                }
            },
            "interactiveMode",
        ),
        ({"exec": {"apiVersion": "client.authentication.k8s.io/v1", "command": "x", "args": "-v"}}, "exec.args"),
        ({"exec": []}, "exec must be a mapping"),
    ],
)
def test_a_bad_user_is_named(tmp_path: Path, user: dict[str, Any], field: str) -> None:
    path = write(tmp_path, config(user=user))
    with pytest.raises(SettingsError) as caught:
        load(path)
    assert field in str(caught.value)
    assert str(path) in str(caught.value)
    assert "s3cret" not in str(caught.value)


@pytest.mark.parametrize(
    ("cluster", "field"),
    [
        ({"server": ""}, "server is missing"),
        ({"server": "c:6443"}, "no URL"),
        ({"server": "https://me:pw@c"}, "no URL"),
        ({"certificate-authority": "gone"}, "gone is missing"),
        ({"insecure-skip-tls-verify": "yes"}, "true or false"),
        ({"proxy-url": "socks5://x"}, "proxy-url"),
    ],
)
def test_a_bad_cluster_is_named(tmp_path: Path, cluster: dict[str, Any], field: str) -> None:
    with pytest.raises(SettingsError, match=field):
        load(write(tmp_path, config(cluster=cluster)))


@pytest.mark.parametrize(
    ("value", "words"),
    [
        ([], "must be a mapping"),
        ({}, "current-context"),
        ({"current-context": "x"}, "no context 'x'"),
        ({**config(), "users": []}, "no user 'u' in users"),
        ({**config(), "clusters": 3}, "must be a list"),
        ({**config(), "contexts": ["one"]}, r"contexts\[0\] must be a mapping"),
    ],
)
def test_a_bad_file_is_named(tmp_path: Path, value: object, words: str) -> None:
    with pytest.raises(SettingsError, match=words):
        load(write(tmp_path, value))


def test_an_unknown_context_tells_the_known_ones(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match="one, two"):
        load(write(tmp_path, config()), "three")


def test_a_missing_file_and_one_that_is_no_yaml_are_named(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match="gone"):
        load(tmp_path / "gone")
    (tmp_path / "config").write_text("a: [\ntoken: s3cret")
    with pytest.raises(SettingsError, match="no YAML") as caught:
        load(tmp_path / "config")
    assert "s3cret" not in str(caught.value)
