"""Alerts, dashboard and scraping: checked by Prometheus' own tools, and by a real Prometheus that scrapes an agent."""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
import shutil
import socket
import subprocess
from typing import TYPE_CHECKING, Any

import aiohttp
import pytest
import yaml

from driver._pb import pod_resources_v1_pb2 as pb
from tests.agent_process import NODE, Node, agent, node_below, nothing_missing
from tests.deploy.manifests import DEPLOY, build_path, load, one
from tests.kubelet.pods import Lister
from tests.waiting import until

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator
    from pathlib import Path

MONITORING = DEPLOY / "monitoring"
PROMTOOL, PROMETHEUS = shutil.which("promtool"), shutil.which("prometheus")
needs_promtool = pytest.mark.skipif(PROMTOOL is None, reason="no promtool (Debian's package prometheus)")
needs_prometheus = pytest.mark.skipif(PROMETHEUS is None, reason="no prometheus (Debian's package of that name)")

SEED_QUERIES = (
    "avg by (pod) (DCGM_FI_DEV_GPU_UTIL)",
    "avg by (Hostname) (DCGM_FI_DEV_FB_USED / (DCGM_FI_DEV_FB_USED + DCGM_FI_DEV_FB_FREE))",
)


def promtool(*arguments: str) -> str:
    assert PROMTOOL is not None
    done = subprocess.run(
        [PROMTOOL, *arguments], cwd=MONITORING, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def groups() -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = load(MONITORING / "alerts.yaml")[0]["groups"]
    return found


def dashboard() -> dict[str, Any]:
    found: dict[str, Any] = json.loads((MONITORING / "dashboard.json").read_text())
    return found


def dashboard_queries() -> Iterator[str]:
    for panel in dashboard()["panels"]:
        for target in panel["targets"]:
            query = target["expr"].replace("$__rate_interval", "5m").replace("$node", ".*").replace("$namespace", ".*")
            assert "$" not in query, f"a variable that the dashboard has not: {query}"
            yield query


def all_queries() -> list[str]:
    return [*dashboard_queries(), *(rule["expr"] for group in groups() for rule in group["rules"]), *SEED_QUERIES]


@needs_promtool
def test_prometheus_accepts_the_alerts():
    assert "SUCCESS" in promtool("check", "rules", "alerts.yaml")


@needs_promtool
def test_alerts_fire_when_they_should_and_not_before():
    assert "SUCCESS" in promtool("test", "rules", "alerts_test.yaml")


def test_every_alert_is_played_through():
    played = {
        one["alertname"]
        for test in yaml.safe_load((MONITORING / "alerts_test.yaml").read_text())["tests"]
        for one in test["alert_rule_test"]
        if one["exp_alerts"]
    }
    assert played == {rule["alert"] for group in groups() for rule in group["rules"]}


def test_the_operator_gets_the_same_alerts():
    assert load(MONITORING / "prometheusrule.yaml")[0]["spec"]["groups"] == groups()


def test_every_alert_says_what_and_what_to_do():
    for rule in (rule for group in groups() for rule in group["rules"]):
        assert rule["labels"]["severity"] in ("critical", "warning", "info"), rule["alert"]
        assert set(rule["annotations"]) == {"summary", "description"}, rule["alert"]


@needs_promtool
def test_every_query_of_the_dashboard_is_promql(tmp_path):
    rules = [{"record": f"q{number}", "expr": query} for number, query in enumerate(all_queries())]
    file = tmp_path / "queries.yaml"
    file.write_text(yaml.safe_dump({"groups": [{"name": "queries", "rules": rules}]}))
    promtool("check", "rules", str(file))


def test_the_dashboard_is_one_that_grafana_can_load():
    board = dashboard()
    panels = board["panels"]
    assert board["title"]
    assert board["uid"] == "gpu-dra"
    assert len({panel["id"] for panel in panels}) == len(panels)
    assert len({panel["title"] + panel["type"] for panel in panels}) == len(panels)
    taken: set[tuple[int, int]] = set()
    for panel in panels:
        at = panel["gridPos"]
        cells = {(x, y) for x in range(at["x"], at["x"] + at["w"]) for y in range(at["y"], at["y"] + at["h"])}
        assert not cells & taken, f"{panel['title']} lies over another panel"
        assert max(x for x, _ in cells) < 24, panel["title"]
        taken |= cells
        assert panel["datasource"]["uid"] == "${datasource}"


def test_the_component_is_for_the_agents_pods(tmp_path):
    """A kustomization must lie beside what it builds on, so it is built in a copy."""
    copy = tmp_path / "deploy"
    shutil.copytree(DEPLOY, copy)
    own = copy / "mine"
    own.mkdir()
    (own / "kustomization.yaml").write_text("resources: [../overlays/nvidia]\ncomponents: [../monitoring]\n")
    objects = build_path(own)
    template = one(objects, "DaemonSet")["spec"]["template"]
    monitor = one(objects, "PodMonitor")
    (endpoint,) = monitor["spec"]["podMetricsEndpoints"]
    assert monitor["spec"]["selector"]["matchLabels"].items() <= template["metadata"]["labels"].items()
    assert endpoint["port"] in {port["name"] for port in template["spec"]["containers"][0]["ports"]}
    assert endpoint["honorLabels"]  # else Prometheus renames `pod` to `exported_pod`
    board = one(objects, "ConfigMap", "gpu-dra-dashboard")
    assert json.loads(board["data"]["dashboard.json"]) == dashboard()
    assert board["metadata"]["labels"]["grafana_dashboard"] == "1"


# --- a real Prometheus ------------------------------------------------------------------------------------------------


@pytest.fixture
async def node(short_tmp: Path) -> AsyncIterator[Node]:
    async with node_below(short_tmp) as made:
        yield made


class Prometheus:
    """A server that scrapes one target each second."""

    def __init__(self, url: str, session: aiohttp.ClientSession) -> None:
        self._url = url
        self._session = session

    async def get(self, path: str, **query: str) -> Any:
        try:
            async with self._session.get(f"{self._url}{path}", params=query) as answer:
                body = await answer.json(content_type=None) if answer.status == 200 else None
        except aiohttp.ClientError:
            return None
        return None if body is None else body.get("data")

    async def query(self, expression: str) -> list[tuple[dict[str, str], float]]:
        data = await self.get("/api/v1/query", query=expression)
        return [(one["metric"], float(one["value"][1])) for one in (data or {}).get("result") or ()]


@contextlib.asynccontextmanager
async def prometheus(directory: Path, port: int) -> AsyncIterator[Prometheus]:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        own = free.getsockname()[1]
    config = {
        "global": {"scrape_interval": "1s", "evaluation_interval": "1s"},
        "rule_files": [str(MONITORING / "alerts.yaml")],
        "scrape_configs": [
            {
                "job_name": "gpu-dra/gpu-dra",
                "honor_labels": True,
                "static_configs": [{"targets": [f"127.0.0.1:{port}"], "labels": {"namespace": "gpu-dra"}}],
            }
        ],
    }
    directory.mkdir()
    (directory / "config.yaml").write_text(yaml.safe_dump(config))
    assert PROMETHEUS is not None
    child = await asyncio.create_subprocess_exec(
        PROMETHEUS, f"--config.file={directory / 'config.yaml'}", f"--storage.tsdb.path={directory / 'data'}",
        f"--web.listen-address=127.0.0.1:{own}", "--log.level=error",
    )  # fmt: skip
    try:
        async with aiohttp.ClientSession() as session:
            yield Prometheus(f"http://127.0.0.1:{own}", session)
    finally:
        child.terminate()
        await child.wait()


def pod(name: str, claim: str, device: str) -> pb.PodResources:
    resource = pb.ClaimResource(driver_name="gpu.nvidia.com", pool_name=NODE, device_name=device)
    dynamic = pb.DynamicResource(claim_name=claim, claim_namespace="default", claim_resources=[resource])
    container = pb.ContainerResources(name="main", dynamic_resources=[dynamic])
    return pb.PodResources(name=name, namespace="default", containers=[container])


@needs_prometheus
async def test_a_real_prometheus_answers_who_uses_what(node: Node, tmp_path: Path) -> None:
    (node.faults.parent / "usage.yaml").write_text(
        "gpus: {gpu-0: {load: 80, memory: 50}, gpu-1: {load: 40, memory: 100}, all: {memory: 0}}"
    )
    lister = Lister()
    async with (
        lister.serving(node.kubelet_root / "pod-resources" / "kubelet.sock"),
        agent(node, telemetry_interval="1") as process,
    ):
        await node.register()
        await until(lambda: nothing_missing(process))
        for number in (0, 1):
            await node.prepare(await node.claim(f"c{number}", f"gpu-{number}"))
            lister.pods.append(pod(f"trainer-{number}", f"c{number}", f"gpu-{number}"))
        async with prometheus(tmp_path / "prometheus", await process.listening()) as server:
            by_pod, by_node = SEED_QUERIES

            async def use_by_pod() -> dict[str, float]:
                return {labels.get("pod", ""): value for labels, value in await server.query(by_pod)}

            await until(lambda: _equals(use_by_pod(), {"trainer-0": 80, "trainer-1": 40, "": 0}))
            ((labels, value),) = await server.query(by_node)
            assert labels == {"Hostname": NODE}
            assert value == pytest.approx(1.5 / 4, abs=0.01)
            unknown = {name for name in _metrics(all_queries()) if not await server.query(f"count({name})")}
            assert unknown <= _ABSENT_HERE
            assert len(await server.query("gpu_dra_gpu_healthy")) == 4
            names = re.findall("^# HELP ([^ ]+)", (await process.get("/metrics"))[1], re.MULTILINE)
            assert len(names) == len(set(names))  # a name that two parts tell is told twice
            targets = await server.get("/api/v1/targets")
            assert [one["health"] for one in targets["activeTargets"]] == ["up"]
            assert [one["lastError"] for one in targets["activeTargets"]] == [""]


_ABSENT_HERE = {  # nothing fails, and no GPU is cut
    "gpu_dra_mig_device_healthy",
    "nvidia_dra_node_prepare_errors_total",
    "nvidia_dra_node_unprepare_errors_total",
    "gpu_dra_publish_errors_total",
}


async def _equals(found: Any, wanted: Any) -> bool:
    return bool(await found == wanted)


def _metrics(queries: list[str]) -> set[str]:
    return {name for query in queries for name in re.findall(r"\b(?:DCGM|gpu_dra|nvidia_dra|process)_\w+", query)}
