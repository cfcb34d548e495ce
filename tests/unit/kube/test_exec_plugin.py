from __future__ import annotations

import asyncio
import json
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

import pytest
import yaml

from driver.errors import ApiUnauthorizedError
from driver.kube import exec_plugin
from driver.kube.exec_plugin import ExecPlugin, ExecToken
from driver.kube.kubeconfig import load

if TYPE_CHECKING:
    from pathlib import Path


def plugin(tmp_path: Path, script: str) -> ExecPlugin:
    """A program that counts its runs in `runs` and then does `script`."""
    path = tmp_path / "plugin"
    path.write_text(f"#!/bin/sh\necho x >>{tmp_path}/runs\n{script}\n")
    path.chmod(0o755)
    return ExecPlugin(command=str(path))


def credential(**status: object) -> str:
    return f"cat <<'E'\n{json.dumps({'kind': 'ExecCredential', 'status': status})}\nE"


def runs(tmp_path: Path) -> int:
    return len((tmp_path / "runs").read_text().split())


def after(seconds: float) -> str:
    return (datetime.now(UTC) + timedelta(seconds=seconds)).strftime("%Y-%m-%dT%H:%M:%SZ")


@pytest.mark.parametrize("expiry", [{}, {"expirationTimestamp": after(3600)}])
async def test_a_token_is_kept_until_it_is_refused(tmp_path: Path, expiry: dict[str, str]) -> None:
    token = ExecToken(plugin(tmp_path, credential(token="abc", **expiry)))
    assert await asyncio.gather(*(token.bearer() for _ in range(5))) == ["abc"] * 5
    assert runs(tmp_path) == 1
    token.refused()
    assert await token.bearer() == "abc"
    assert runs(tmp_path) == 2


async def test_a_token_about_to_expire_is_asked_for_again(tmp_path: Path) -> None:
    token = ExecToken(plugin(tmp_path, credential(token="abc", expirationTimestamp=after(5))))
    assert await token.bearer() == await token.bearer() == "abc"
    assert runs(tmp_path) == 2


async def test_a_kubeconfig_gives_command_arguments_and_environment(tmp_path: Path) -> None:
    script = tmp_path / "plugin"
    script.write_text(
        '#!/bin/sh\nprintf \'{"status": {"token": "%s"}}\' "$1-$COLOUR-$(echo $KUBERNETES_EXEC_INFO | tr -d \\")"\n'
    )
    script.chmod(0o755)
    user = {
        "exec": {
            "apiVersion": "client.authentication.k8s.io/v1",
            "command": "./plugin",
            "args": ["one"],
            "env": [{"name": "COLOUR", "value": "red"}],
            "interactiveMode": "Never",
        }
    }
    config = {
        "current-context": "x",
        "contexts": [{"name": "x", "context": {"cluster": "x", "user": "x"}}],
        "clusters": [{"name": "x", "cluster": {"server": "https://x"}}],
        "users": [{"name": "x", "user": user}],
    }
    (tmp_path / "config").write_text(yaml.safe_dump(config))
    token = await load(tmp_path / "config").token.bearer()
    assert token is not None
    assert token.startswith("one-red-{apiVersion: client.authentication.k8s.io/v1")


@pytest.mark.parametrize(
    ("script", "words"),
    [
        ("echo please log in >&2; exit 3", "status 3: please log in"),
        ("echo s3cret", "printed no ExecCredential"),
        ("echo '{\"status\": 3}'", "printed no ExecCredential"),
        (credential(token="s3cret", expirationTimestamp="soon"), "printed no ExecCredential"),
        (credential(clientCertificateData="s3cret"), "gave no token"),
        (credential(token=""), "gave no token"),
    ],
)
async def test_a_failing_plugin_is_told_without_its_secrets(tmp_path: Path, script: str, words: str) -> None:
    with pytest.raises(ApiUnauthorizedError, match=words) as caught:
        await ExecToken(plugin(tmp_path, script)).bearer()
    assert "s3cret" not in str(caught.value)


async def test_a_missing_plugin_is_named(tmp_path: Path) -> None:
    with pytest.raises(ApiUnauthorizedError, match="gone"):
        await ExecToken(ExecPlugin(command=str(tmp_path / "gone"))).bearer()


async def test_a_hanging_plugin_is_killed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(exec_plugin, "_TIME_LIMIT", 0.1)
    with pytest.raises(ApiUnauthorizedError, match="took longer"):
        await ExecToken(plugin(tmp_path, "exec sleep 60")).bearer()
