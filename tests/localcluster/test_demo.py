"""`gpu-dra demo` as people run it: a process of its own, which starts the unmodified agent as another."""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import signal
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from driver.kube.client import KubeClient

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

PODS = "/api/v1/namespaces/default/pods"
CLAIMS = "/apis/resource.k8s.io/v1/namespaces/default/resourceclaims"


@contextlib.asynccontextmanager
async def demo(*arguments: str, path: str | None = None) -> AsyncIterator[asyncio.subprocess.Process]:
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        *("-m", "driver", "demo", *arguments),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
        env={**os.environ, **({"PATH": path} if path else {})},
    )
    try:
        yield process
    finally:
        if process.returncode is None:
            process.terminate()
            await process.wait()


async def said(process: asyncio.subprocess.Process) -> str:
    assert process.stdout is not None
    return (await process.stdout.read()).decode()


@pytest.mark.parametrize(("gpus", "product"), [("h100:8", "NVIDIA H100 80GB HBM3"), ("a100-80:4,l4:2", "A100")])
async def test_everything_holds_and_nothing_is_left(gpus: str, product: str) -> None:
    async with demo("--gpus", gpus) as process, asyncio.timeout(60):
        output = await said(process)
        assert await process.wait() == 0, output
    assert product in output
    assert "in use by claim default/vllm-0" in output
    assert "no GPU was given twice" in output
    assert "its sockets are gone" in output
    assert "Everything held" in output


async def test_too_few_gpus_are_told() -> None:
    async with demo("--gpus", "l4:1") as process, asyncio.timeout(60):
        output = await said(process)
        assert await process.wait() == 1
    assert "wants at least two whole GPUs of one product" in output


async def test_of_very_many_gpus_each_claim_has_what_an_allocation_may_have() -> None:
    async with demo("--gpus", "l4:66") as process, asyncio.timeout(60):
        output = await said(process)
        assert await process.wait() == 0, output
    assert "template: 32 GPUs" in output


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--gpus", "h1000:2"], "--gpus: invalid value 'h1000': no such product; did you mean 'h100'?"),
        (["--gpus", "h100:x"], "--gpus: invalid value 'x': a count is a whole number from 1 to 1024"),
        (["--kubernetes", "1.33"], "kubernetes: invalid value '1.33': one of 1.34"),
    ],
)
async def test_arguments_that_can_not_be_are_told_in_one_line(arguments: list[str], words: str) -> None:
    async with demo(*arguments) as process, asyncio.timeout(60):
        output = await said(process)
        assert await process.wait() == 2
    assert words in output.splitlines()[-1]
    assert output.count(words) == 1


async def test_a_kept_cluster_is_removed_whatever_became_of_it() -> None:
    async with demo("--keep") as process, asyncio.timeout(60):
        assert process.stdout is not None
        found = None
        while not found:
            line = (await process.stdout.readline()).decode()
            assert line
            found = re.search(r"export KUBECONFIG=(\S+)", line)
        client = KubeClient.from_kubeconfig(found[1])
        await client.delete(f"{PODS}/vllm-0")
        request = {"name": "gpu", "exactly": {"deviceClassName": "gpu.nvidia.com"}}
        await client.create(CLAIMS, {"metadata": {"name": "mine"}, "spec": {"devices": {"requests": [request]}}})
        container = {"name": "main", "image": "busybox"}
        await client.create(PODS, {"metadata": {"name": "mine"}, "spec": {"containers": [container]}})
        await client.aclose()
        process.send_signal(signal.SIGINT)
        output = await said(process)
        assert await process.wait() == 0, output
    assert "Everything held" in output


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
async def test_who_ends_it_early_leaves_no_agent_alone(number: signal.Signals) -> None:
    async with demo() as process, asyncio.timeout(60):
        assert process.stdout is not None
        while b"the agent published" not in (line := await process.stdout.readline()):
            assert line
        (agent,) = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
        process.send_signal(number)
        output = await said(process)
        assert await process.wait() == 1, output
    assert output.endswith("  interrupted\n")
    assert "Traceback" not in output
    assert not Path("/proc", agent).exists()


async def test_what_a_kept_cluster_says_to_run_can_be_run_as_it_is(tmp_path: Path) -> None:
    outside = "/usr/sbin:/usr/bin:/sbin:/bin"
    async with demo("--keep", path=outside) as process, asyncio.timeout(60):
        assert process.stdout is not None
        while b"export KUBECONFIG" not in (line := await process.stdout.readline()):
            assert line
        lines = [line.decode().strip()]
        while b"Ctrl-C" not in (line := await process.stdout.readline()):
            lines.append(line.decode().replace("gpu-dra top", "gpu-dra status").strip())  # top runs until it is ended
        shell = await asyncio.create_subprocess_exec(
            *("sh", "-ec", "\n".join(lines)),
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
            env={"PATH": outside, "HOME": str(tmp_path)},  # where kubectl keeps what it has discovered
        )
        output = await said(shell)
        assert await shell.wait() == 0, output
        process.send_signal(signal.SIGTERM)
        assert "Everything held" in await said(process)
    assert "pod/vllm-0" in output
    assert "gpu-0   H100" in output
    assert "xid=79" in output
