"""The API server as a process of its own."""

from __future__ import annotations

import asyncio
import signal
import sys

import pytest
import yaml

from driver.localcluster.apiserver.__main__ import main


async def test_it_prints_its_kubeconfig_serves_and_ends_on_sigterm(tmp_path):
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "driver.localcluster.apiserver", "--root", tmp_path, "--kubernetes", "1.34",
        "--feature-gates", "DRADeviceTaints=true", "--audit-file", tmp_path / "audit", stdout=-1,
    )  # fmt: skip
    async with asyncio.timeout(30):
        path = (await process.stdout.readline()).decode().strip()
        url = yaml.safe_load((tmp_path / "kubeconfig").read_text())["clusters"][0]["cluster"]["server"]
        assert path == str(tmp_path / "kubeconfig")
        host, port = url.removeprefix("https://").split(":")
        _, writer = await asyncio.open_connection(host, int(port))
        writer.close()
        await writer.wait_closed()
        process.send_signal(signal.SIGTERM)
        assert await process.wait() == 0


@pytest.mark.parametrize(
    "arguments",
    [["--kubernetes", "1.2"], ["--feature-gates", "Nonsense=true"], ["--feature-gates", "x"], ["--dra-versions", "v7"]],
)
def test_settings_that_can_not_be_are_told(tmp_path, arguments, capsys):
    with pytest.raises(SystemExit) as caught:
        main(["--root", str(tmp_path), *arguments])
    assert caught.value.code == 2
    assert arguments[1].partition("=")[0] in capsys.readouterr().err
