from __future__ import annotations

import http.server
import json
import socket
import socketserver
import threading
from typing import TYPE_CHECKING, Any

import pytest
import yaml

from driver.cli import FAILED, OK, USAGE, main
from driver.cli.status_screen import render
from driver.cli.top import screen
from driver.model.holder import Holder
from driver.model.usage import GpuUsage, Usage
from driver.telemetry.report import AgentState, describe
from driver.telemetry.sample import Sample
from tests.unit.slices.helpers import FELL_OFF, NODE, snapshot

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

NOW = "2026-01-02T03:04:05Z"


def status(spec: str = "h100:2", **changes: Any) -> dict[str, Any]:
    """The document of a node whose first GPU a pod has had for two hours and a bit."""
    node = changes.pop("node", None) or snapshot(spec)
    first = node.gpus[0]
    use = Usage(utilization=80, memory_total=80 << 30, memory_used=20 << 30, power=512.4, temperature=66)
    holder = Holder(
        namespace="ml", pod="trainer", container="main", claim_namespace="ml", claim="c", claim_uid="u", device="gpu-0"
    )
    sample = Sample(usage={first.uuid: GpuUsage(whole=use)}, holders={first.uuid: (holder,)})
    agent = AgentState(
        node=NODE, version="0.1.0", pid=7, time=NOW, missing=changes.pop("missing", {}),
        since={"u": "2026-01-02T00:50:00Z"}, age=0.4, problem=changes.pop("problem", ""),
    )  # fmt: skip
    assert not changes
    return describe(agent, node, sample)


class Agent(socketserver.UnixStreamServer):
    """Something that answers at the agent's socket."""

    request_queue_size = 16

    def __init__(self, state: Path) -> None:
        self.answer: tuple[int, bytes] = (200, json.dumps(status()).encode())
        state.mkdir(exist_ok=True)
        super().__init__(str(state / "status.sock"), _Handler)


class _Handler(http.server.BaseHTTPRequestHandler):
    server: Agent

    def do_GET(self) -> None:
        code, body = self.server.answer
        self.send_response(code)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        pass

    def address_string(self) -> str:
        return ""


@pytest.fixture
def agent(short_tmp: Path) -> Iterator[Agent]:
    with Agent(short_tmp / "state") as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield server
        server.shutdown()
        thread.join()


def run(command: str, short_tmp: Path, *arguments: str) -> int:
    return main([command, "--state-dir", str(short_tmp / "state"), *arguments])


def test_the_screen_tells_devices_holders_health_and_use(agent: Agent, short_tmp: Path, capsys) -> None:
    assert run("status", short_tmp) == OK
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith(f"{NODE}:  2 GPUs, 2 healthy, 1 held  driver 580.105.08, CUDA 13.0  agent 0.1.0 ready")
    assert lines[2].split() == [
        "DEVICE", "PRODUCT", "OWNER", "HEALTH", "UTIL", "MEMORY", "POWER", "TEMP", "HELD", "BY", "SINCE",
    ]  # fmt: skip
    assert lines[3].split() == [
        "gpu-0", "H100", "80GB", "HBM3", "dra", "ok", "80%", "20.0/80", "GiB", "512", "W", "66", "C",
        "pod", "ml/trainer", "claim", "ml/c", "2h14m",
    ]  # fmt: skip
    assert lines[4].split() == ["gpu-1", "H100", "80GB", "HBM3", "dra", "ok"]
    assert len(lines) == 5


def test_for_programs(agent: Agent, short_tmp: Path, capsys) -> None:
    assert run("status", short_tmp, "-o", "json") == OK
    assert json.loads(capsys.readouterr().out) == status()
    assert run("status", short_tmp, "-o", "yaml") == OK
    assert yaml.safe_load(capsys.readouterr().out) == status()


def test_a_sick_gpu_and_a_node_that_is_not_ready() -> None:
    node = snapshot("h100:2", taints={1: (FELL_OFF,)})
    text = "\n".join(render(status(node=node, missing={"kubelet": "not registered"}, problem="NVML is stuck")))
    assert "agent 0.1.0 NOT READY" in text
    assert "not ready: kubelet: not registered" in text
    assert "BAD" in text
    assert "use: NVML is stuck" in text


def test_the_reason_stands_below_with_its_taints() -> None:
    shown = status()
    shown["gpus"][1]["health"] = {
        "healthy": False,
        "reason": "XID 79: it fell off the bus",
        "taints": [{"key": "gpu.nvidia.com/xid", "value": "79", "effect": "NoSchedule"}],
    }
    assert "gpu-1: XID 79: it fell off the bus [gpu.nvidia.com/xid=79:NoSchedule]" in render(shown)


def test_a_lost_gpu_is_told_once_and_its_taint_as_kubectl_writes_it() -> None:
    shown = status()
    taint = {"key": "gpu.nvidia.com/gpu-lost", "value": "", "effect": "NoSchedule"}
    shown["gpus"][1]["health"] = {"healthy": False, "reason": "the GPU is lost", "taints": [taint]}
    shown["problems"] = [
        {"object": "gpu-1", "message": "the GPU is lost"},
        {"object": "gpu-0", "message": "health queries failed: ecc"},
    ]
    assert render(shown)[-2:] == [
        "gpu-1: the GPU is lost [gpu.nvidia.com/gpu-lost:NoSchedule]",
        "gpu-0: health queries failed: ecc",
    ]


def test_mig_devices_stand_below_their_gpu() -> None:
    lines = render(status("h100@mig=1g.10gb*2,l4"))
    assert [line.split()[0] for line in lines[3:]] == ["gpu-0", "mig-1g10gb-19-0", "mig-1g10gb-19-1", "gpu-1"]


def test_several_holders_have_a_line_each() -> None:
    shown = status()
    shown["gpus"][0]["holders"].append({"pod": "ml/other", "claim": "", "since": "", "adminAccess": True})
    lines = render(shown)
    assert lines[4].split() == ["pod", "ml/other", "(admin", "access)"]


def test_a_gpu_on_its_way_to_another_owner() -> None:
    shown = status()
    shown["gpus"][1] |= {"wanted": "device-plugin", "waitingFor": "claim ml/c"}
    lines = render(shown)
    assert "dra -> device-plugin" in lines[4]
    assert lines[-1] == "gpu-1: goes to device-plugin when free: claim ml/c"


def test_a_node_without_gpus() -> None:
    assert "this node has no GPU that the driver knows" in render({**status(), "gpus": []})


@pytest.mark.parametrize(
    ("since", "shown"),
    [
        ("2026-01-02T03:04:00Z", "5s"),
        ("2026-01-02T03:00:05Z", "4m0s"),
        ("2025-12-30T01:04:05Z", "3d2h"),
        ("2027-01-01T00:00:00Z", "0s"),
        ("", ""),
        ("yesterday", ""),
    ],
)
def test_since_when(since: str, shown: str) -> None:
    document = status()
    document["gpus"][0]["holders"][0]["since"] = since
    assert render(document)[3].rpartition("ml/c")[2].strip() == shown


# --- no agent ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("command", ["status", "top"])
def test_no_agent_and_the_next_step(short_tmp: Path, capsys, command: str) -> None:
    assert run(command, short_tmp) == FAILED
    error = capsys.readouterr().err
    assert f"no agent runs on this node: there is no {short_tmp}/state/status.sock" in error
    assert "kubectl get pods -n gpu-dra" in error


def test_an_agent_that_died(short_tmp: Path, capsys) -> None:
    (short_tmp / "state").mkdir()
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(str(short_tmp / "state/status.sock"))
    assert run("status", short_tmp) == FAILED
    assert "no agent runs on this node any more" in capsys.readouterr().err


@pytest.mark.parametrize("answer", [(500, b"{}"), (200, b"x"), (200, b"[]"), (200, b'{"gpus": 1}'), (404, b"not here")])
def test_something_else_answers(agent: Agent, short_tmp: Path, capsys, answer: tuple[int, bytes]) -> None:
    agent.answer = answer
    assert run("status", short_tmp) == FAILED
    assert "gives no status" in capsys.readouterr().err


# --- top --------------------------------------------------------------------------------------------------------------


def test_top_elsewhere_than_on_a_terminal(agent: Agent, short_tmp: Path, capsys) -> None:
    assert run("top", short_tmp, "-n", "2", "--interval", "0.2") == OK
    out = capsys.readouterr().out
    assert out.count("DEVICE") == 2
    assert "\x1b" not in out


def test_top_for_programs_a_line_each(agent: Agent, short_tmp: Path, capsys) -> None:
    assert run("top", short_tmp, "-n", "2", "--interval", "200ms", "-o", "json") == OK
    assert [json.loads(line) for line in capsys.readouterr().out.splitlines()] == [status()] * 2


def test_top_on_a_terminal(agent: Agent, short_tmp: Path, capsys, monkeypatch) -> None:
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    assert run("top", short_tmp, "-n", "2", "--interval", "0.2") == OK
    out = capsys.readouterr().out
    assert out.startswith("\x1b[?1049h\x1b[?25l\x1b[H")
    assert out.count("\x1b[H") == 2
    own, _, after = out.rpartition("\x1b[?25h\x1b[?1049l")
    assert own
    assert after.startswith(f"{NODE}:")  # what was seen last stays


def test_top_waits_for_an_agent_that_is_restarted(short_tmp: Path, capsys, monkeypatch) -> None:
    looks = iter([status(), None, status()])

    def read(_: object) -> dict[str, Any]:
        from driver.cli.agent_socket import NoAgentError

        found = next(looks)
        if found is None:
            raise NoAgentError("no agent runs on this node any more")
        return found

    monkeypatch.setattr("driver.cli.agent_socket.read_status", read)
    assert run("top", short_tmp, "-n", "3", "--interval", "0.2") == OK
    out = capsys.readouterr().out
    assert out.count("DEVICE") == 2
    assert "waiting for it" in out


@pytest.mark.parametrize("words", [["-n", "0"], ["-n", "x"], ["--interval", "0"], ["--interval", "x"], ["-o", "yaml"]])
def test_wrong_words(short_tmp: Path, capsys, words: list[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        run("top", short_tmp, *words)
    assert ended.value.code == USAGE
    assert words[0] in capsys.readouterr().err


def test_a_small_terminal() -> None:
    drawn = screen([f"line {number} " + "x" * 200 for number in range(50)], columns=20, lines=10)
    lines = drawn.removeprefix("\x1b[H").removesuffix("\x1b[J").split("\n")
    assert len(lines) == 10
    assert all(len(line.removesuffix("\x1b[K")) <= 20 for line in lines)
    assert lines[-1].startswith("... 41 more lines")


def test_what_is_bad_is_red() -> None:
    drawn = screen(["gpu-0  BAD", "gpu-1  ok", "DEVICE"], columns=80, lines=10)
    assert "\x1b[31mgpu-0  BAD\x1b[0m" in drawn
    assert "\x1b[31mgpu-1" not in drawn
    assert "\x1b[1mDEVICE\x1b[0m" in drawn
