"""Pods without devices: containers, restarts, volumes, environment, probes, ends, logs."""

from __future__ import annotations

import asyncio
import os
import re
import sys
from datetime import UTC, datetime
from typing import Any

import pytest

from driver.localcluster.apiserver.errors import StatusError
from driver.localcluster.apiserver.log_request import LogRequest
from tests.waiting import until

from .conftest import NODE, Bench
from .test_claims import gone, running


def container(name: str, script: str, **more: Any) -> dict[str, Any]:
    return {"name": name, "image": "busybox", "command": ["sh", "-c", script], **more}


def conditions(bench: Bench, name: str) -> dict[str, str]:
    return {item["type"]: item["status"] for item in bench.get(name)["status"]["conditions"]}


async def ended(bench: Bench, name: str) -> str:
    await until(lambda: bench.phase(name) in ("Succeeded", "Failed"), f"{name} ends")
    return bench.phase(name)


@pytest.mark.parametrize(
    ("policy", "code", "phase"),
    [("Never", 0, "Succeeded"), ("Never", 3, "Failed"), ("OnFailure", 0, "Succeeded")],
)
async def test_a_pod_ends_as_its_container_does(bench: Bench, policy: str, code: int, phase: str) -> None:
    bench.pod("p", script=f"echo out; echo err >&2; exit {code}", restartPolicy=policy)
    assert await ended(bench, "p") == phase
    state = bench.status("p")["state"]["terminated"]
    assert (state["exitCode"], state["reason"]) == (code, "Error" if code else "Completed")
    assert sorted(bench.log("p").split()) == ["err", "out"]
    assert {"Started", "Created", "Pulled"} <= {event["reason"] for event in bench.store.list("events")}


@pytest.mark.parametrize(("policy", "code"), [("Always", 0), ("Always", 1), ("OnFailure", 1)])
async def test_a_container_is_started_again_ever_more_slowly(bench: Bench, policy: str, code: int) -> None:
    bench.pod("p", script=f"echo run; exit {code}", restartPolicy=policy)
    await until(lambda: bench.status("p").get("restartCount", 0) >= 3)
    assert bench.status("p")["lastState"]["terminated"]["exitCode"] == code
    waiting = await until(lambda: bench.status("p")["state"].get("waiting"))
    assert waiting["reason"] == "CrashLoopBackOff"
    assert "restarting failed container=c" in waiting["message"]
    assert bench.phase("p") == "Running"
    assert bench.log("p", previous=True) == "run\n"


async def test_on_failure_ends_with_the_first_success(bench: Bench) -> None:
    volumes = [{"name": "v", "emptyDir": {}}]
    script = "d=/v; test -d $d || d=/tmp; test -e $d/$HOSTNAME-p && exit 0; touch $d/$HOSTNAME-p; exit 1"
    mounts = [{"name": "v", "mountPath": "/v"}]
    bench.pod("p", containers=[container("c", script, volumeMounts=mounts)], volumes=volumes, restartPolicy="OnFailure")
    assert await ended(bench, "p") == "Succeeded"
    assert bench.status("p")["restartCount"] == 1


async def test_init_containers_run_in_order_before_the_others(bench: Bench) -> None:
    mode = await bench.kubelet.runtime.mode()
    if mode == "plain":
        pytest.skip("plain containers do not see their volumes")
    use = {"volumeMounts": [{"name": "v", "mountPath": "/v"}]}
    bench.pod(
        "p",
        volumes=[{"name": "v", "emptyDir": {"medium": "Memory"}}],
        initContainers=[container("i1", "echo 1 >> /v/f", **use), container("i2", "echo 2 >> /v/f", **use)],
        containers=[container("c", "cat /v/f", **use)],
        restartPolicy="Never",
    )
    assert await ended(bench, "p") == "Succeeded"
    assert bench.log("p") == "1\n2\n"
    assert bench.status("p", "i2")["ready"]


async def test_a_failed_init_container_fails_the_pod(bench: Bench) -> None:
    bench.pod(
        "p", initContainers=[container("i", "exit 1")], containers=[container("c", "echo never")], restartPolicy="Never"
    )
    assert await ended(bench, "p") == "Failed"
    assert bench.log("p") == ""
    assert conditions(bench, "p")["Initialized"] == "False"


async def test_a_sidecar_starts_first_and_stops_last(bench: Bench) -> None:
    bench.pod(
        "p",
        initContainers=[container("side", "echo up; sleep 100", restartPolicy="Always")],
        containers=[container("c", "exit 0")],
        restartPolicy="Never",
    )
    assert await ended(bench, "p") == "Succeeded"
    await until(lambda: "terminated" in bench.status("p", "side")["state"])


async def test_ready_and_its_conditions(bench: Bench) -> None:
    bench.pod("p", script="sleep 100")
    await running(bench, "p")
    assert conditions(bench, "p") == dict.fromkeys(
        ("PodScheduled", "PodReadyToStartContainers", "Initialized", "Ready", "ContainersReady"), "True"
    )
    assert bench.get("p")["status"]["podIP"] == "127.0.0.1"


async def test_a_deleted_pod_gets_its_grace(bench: Bench) -> None:
    bench.pod(
        "p", script="trap 'exit 5' TERM; echo up; while :; do sleep 0.01; done", terminationGracePeriodSeconds=3000
    )
    await until(lambda: bench.log("p"))
    seen: list[int] = []
    bench.delete("p")

    def watch() -> bool:
        state = bench.status("p").get("state", {})
        seen.extend([state["terminated"]["exitCode"]] if "terminated" in state else [])
        return bench.phase("p") == "gone"

    await until(watch)
    assert set(seen) <= {5}
    assert not bench.kubelet.runtime.containers
    assert not list(bench.paths.pods.iterdir())


async def test_a_pod_that_ignores_its_end_is_killed(bench: Bench) -> None:
    bench.pod("p", script="trap '' TERM; while :; do sleep 0.01; done", terminationGracePeriodSeconds=1)
    await running(bench, "p")
    bench.delete("p")
    await gone(bench, "p")


async def test_the_environment_of_a_container(bench: Bench) -> None:
    bench.store.create("configmaps", {"metadata": {"name": "m"}, "data": {"KEY": "from map"}}, "default")
    bench.store.create("secrets", {"metadata": {"name": "s"}, "data": {"token": "c2VjcmV0"}}, "default")
    env = [
        {"name": "A", "value": "a"},
        {"name": "B", "value": "$(A)-$(NONE)-$$(A)"},
        {"name": "NODE", "valueFrom": {"fieldRef": {"fieldPath": "spec.nodeName"}}},
        {"name": "UID_", "valueFrom": {"fieldRef": {"fieldPath": "metadata.uid"}}},
        {"name": "SECRET", "valueFrom": {"secretKeyRef": {"name": "s", "key": "token"}}},
        {"name": "GONE", "valueFrom": {"secretKeyRef": {"name": "x", "key": "token", "optional": True}}},
        {"name": "CPU", "valueFrom": {"resourceFieldRef": {"resource": "limits.cpu"}}},
    ]
    spec = container("c", "env", env=env, envFrom=[{"configMapRef": {"name": "m"}}], resources={"limits": {"cpu": "2"}})
    bench.pod("p", containers=[spec], restartPolicy="Never")
    await ended(bench, "p")
    uid = bench.get("p")["metadata"]["uid"]
    expected = {"A=a", "B=a-$(NONE)-$(A)", f"NODE={NODE}", f"UID_={uid}", "SECRET=secret", "KEY=from map", "CPU=2"}
    lines = set(bench.log("p").splitlines())
    assert expected <= lines
    assert not any(line.startswith("GONE") for line in lines)


async def test_a_missing_reference_keeps_the_container_waiting(bench: Bench) -> None:
    env = [{"name": "A", "valueFrom": {"configMapKeyRef": {"name": "m", "key": "k"}}}]
    bench.pod("p", containers=[container("c", "echo $A; sleep 100", env=env)])
    waiting = await until(lambda: bench.status("p").get("state", {}).get("waiting", {}).get("message"))
    assert waiting == 'configmap "m" not found'
    assert bench.status("p")["state"]["waiting"]["reason"] == "CreateContainerConfigError"
    bench.store.create("configmaps", {"metadata": {"name": "m"}, "data": {"k": "v"}}, "default")
    await until(lambda: bench.log("p") == "v\n")
    assert bench.status("p")["restartCount"] == 0


async def test_a_missing_reference_is_looked_for_as_often_later_on(bench: Bench) -> None:
    """Waits that grow as those of a crash loop do would take a minute for so many tries."""
    spec = container("c", "sleep 100", envFrom=[{"configMapRef": {"name": "m"}}])
    bench.pod("p", containers=[spec])
    await until(lambda: [event["count"] for event in bench.store.list("events") if event["reason"] == "Failed"] >= [20])


async def test_config_maps_secrets_and_the_downward_api_as_files(bench: Bench) -> None:
    if await bench.kubelet.runtime.mode() == "plain":
        pytest.skip("plain containers do not see their volumes")
    bench.store.create("configmaps", {"metadata": {"name": "m"}, "data": {"k": "map\n"}}, "default")
    bench.store.create("secrets", {"metadata": {"name": "s"}, "data": {"t": "c2VjcmV0Cg=="}}, "default")
    volumes = [
        {"name": "m", "configMap": {"name": "m", "items": [{"key": "k", "path": "deep/k"}]}},
        {"name": "s", "secret": {"secretName": "s"}},
        {"name": "d", "downwardAPI": {"items": [{"path": "name", "fieldRef": {"fieldPath": "metadata.name"}}]}},
    ]
    mounts = [{"name": item["name"], "mountPath": f"/mnt/{item['name']}", "readOnly": True} for item in volumes]
    script = "cat /mnt/m/deep/k /mnt/s/t /mnt/d/name"
    bench.pod("p", containers=[container("c", script, volumeMounts=mounts)], volumes=volumes, restartPolicy="Never")
    await ended(bench, "p")
    assert bench.log("p") == "map\nsecret\np"


async def test_a_volume_that_cannot_be_is_told(bench: Bench) -> None:
    bench.pod("p", volumes=[{"name": "v", "persistentVolumeClaim": {"claimName": "x"}}])
    await until(lambda: bench.events("FailedMount"))
    assert "has no volumes of type persistentVolumeClaim" in bench.events("FailedMount")[0]


@pytest.mark.parametrize(
    ("spec", "said"),
    [
        ({"image": "vllm/vllm-openai", "args": ["--model", "x"]}, "vllm/vllm-openai has no command"),
        ({"image": "busybox", "args": ["sh", "-c", "echo by args; sleep 100"]}, "by args"),
    ],
)
async def test_without_a_command(bench: Bench, spec: dict[str, Any], said: str) -> None:
    bench.pod("p", containers=[{"name": "c", **spec}])
    await running(bench, "p")
    await until(lambda: said in bench.log("p").replace("(", "").replace(")", ""))


async def test_a_program_that_is_not_there(bench: Bench) -> None:
    bench.pod("p", containers=[{"name": "c", "image": "x", "command": ["no-such-program"]}], restartPolicy="Never")
    assert await ended(bench, "p") == "Failed"
    state = bench.status("p")["state"]["terminated"]
    assert (state["reason"], state["exitCode"]) == ("StartError", 128)
    assert "executable file not found in $PATH" in state["message"]
    assert bench.status("p")["restartCount"] == 0


async def test_starts_that_fail_are_counted(bench: Bench) -> None:
    bench.pod("p", containers=[{"name": "c", "image": "x", "command": ["no-such-program"]}])
    await until(lambda: bench.status("p").get("restartCount", 0) >= 2)
    state = bench.status("p")["lastState"]["terminated"]
    assert (state["reason"], state["exitCode"]) == ("StartError", 128)


async def test_probes(bench: Bench) -> None:
    volume = [{"name": "v", "hostPath": {"path": str(bench.paths.root)}}]
    flag = bench.paths.root / "ready"
    probe = {
        "exec": {"command": ["sh", "-c", f"test -e {flag} -o -e /v/ready"]},
        "periodSeconds": 1,
        "timeoutSeconds": 10,
    }
    probes = {
        "startupProbe": {**probe, "failureThreshold": 10_000},
        "readinessProbe": {**probe, "failureThreshold": 1},
    }
    spec = container("c", "sleep 100", volumeMounts=[{"name": "v", "mountPath": "/v"}], **probes)
    bench.pod("p", containers=[spec], volumes=volume)
    why = f"command 'sh -c test -e {flag} -o -e /v/ready' exited with 1"
    await until(lambda: bench.events("Unhealthy"))
    assert bench.events("Unhealthy") == [f"Startup probe failed: {why}"]
    assert not bench.status("p")["started"]
    flag.touch()
    await running(bench, "p")
    assert bench.status("p")["started"]
    flag.unlink()
    await until(lambda: not bench.status("p")["ready"])
    assert f"Readiness probe failed: {why}" in bench.events("Unhealthy")


async def test_a_failing_liveness_probe_restarts_the_container(bench: Bench) -> None:
    probe = {"exec": {"command": ["false"]}, "periodSeconds": 1, "failureThreshold": 1, "timeoutSeconds": 10}
    bench.pod("p", containers=[container("c", "sleep 100", livenessProbe=probe)])
    await until(lambda: bench.status("p").get("restartCount", 0) >= 1)
    assert any("failed liveness probe" in text for text in bench.events("Killing"))


@pytest.mark.skipif(
    os.geteuid() != 0 and sys.executable.startswith("/tmp/"), reason="a container has a /tmp of its own: no Python"
)
async def test_an_http_probe(bench: Bench, unused_tcp_port: int) -> None:
    probe = {
        "httpGet": {"path": "/x", "port": "web"},
        "periodSeconds": 1,
        "failureThreshold": 10_000,
        "timeoutSeconds": 5,
    }
    script = (
        "import http.server as h; C = type('C', (h.BaseHTTPRequestHandler,), "
        "{'do_GET': lambda s: (s.send_response(204), s.end_headers()), 'log_message': lambda *a: None}); "
        f"h.HTTPServer(('127.0.0.1', {unused_tcp_port}), C).serve_forever()"
    )
    spec = {
        "name": "c",
        "image": "x",
        "command": [sys.executable, "-S", "-c", script],
        "ports": [{"name": "web", "containerPort": unused_tcp_port}],
        "readinessProbe": probe,
    }
    bench.pod("p", containers=[spec])
    await running(bench, "p")


async def collect(bench: Bench, **how: Any) -> str:
    log = bench.kubelet.log(LogRequest(pod=bench.get("p"), container="c", **how))
    return b"".join([chunk async for chunk in log]).decode()


async def test_logs(bench: Bench) -> None:
    bench.pod("p", script="for i in 1 2 3 4; do echo $i; sleep 0.01; done", restartPolicy="Never")
    await until(lambda: bench.log("p"))
    assert await collect(bench, follow=True) == "1\n2\n3\n4\n"
    assert await collect(bench, tail_lines=2) == "3\n4\n"
    assert await collect(bench, tail_lines=0) == ""
    assert await collect(bench, tail_lines=9, limit_bytes=3) == "1\n2"
    with pytest.raises(StatusError, match='previous terminated container "c" in pod "p" not found'):
        await collect(bench, previous=True)


def unstamped(text: str) -> str:
    """Return what is left without the times, which are in order and in the form that kubelets use."""
    lines = [line.partition(" ") for line in text.split("\n")]
    stamps = [stamp for stamp, _, _ in lines]
    assert stamps == sorted(stamps)
    assert all(re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{9}Z", stamp) for stamp in stamps)
    return "\n".join(rest for _, _, rest in lines)


async def test_lines_have_times(bench: Bench) -> None:
    go = "while ! test -e $FLAG -o -e /v/go; do sleep 0.01; done"
    env = [{"name": "FLAG", "value": str(bench.paths.root / "go")}]
    mount = [{"name": "v", "mountPath": "/v"}]
    script = f"echo one; printf 'two\\r'; echo 2; {go}; echo three; printf four"
    volume = [{"name": "v", "hostPath": {"path": str(bench.paths.root)}}]
    spec = container("c", script, env=env, volumeMounts=mount)
    bench.pod("p", containers=[spec], volumes=volume, restartPolicy="Never")
    await until(lambda: bench.log("p").endswith("2\n"))
    between = datetime.now(UTC)
    following = asyncio.create_task(collect(bench, follow=True, timestamps=True))
    recent = asyncio.create_task(collect(bench, follow=True, since=between))
    (bench.paths.root / "go").touch()
    everything = "one\ntwo\r2\nthree\nfour"
    assert unstamped(await following) == everything
    assert await recent == "three\nfour"
    await ended(bench, "p")
    stamped = await collect(bench, timestamps=True)
    assert unstamped(stamped) == everything
    assert stamped.split("\n")[1] < between.isoformat() < stamped.split("\n")[2]
    assert await collect(bench, since=between) == "three\nfour"
    assert await collect(bench, since=between, tail_lines=1) == "four"
    assert await collect(bench, since=datetime.now(UTC)) == ""
    assert unstamped(await collect(bench, tail_lines=2, timestamps=True)) == "three\nfour"
    assert await collect(bench, timestamps=True, limit_bytes=40) == stamped[:40]
    assert await collect(bench, since=datetime.min.replace(tzinfo=UTC)) == everything


async def test_the_previous_log_of_what_waits_to_be_restarted_is_its_last(bench: Bench) -> None:
    bench.pod("p", script="echo run; exit 1")
    await until(lambda: "waiting" in bench.status("p").get("state", {}) and bench.status("p").get("lastState"))
    assert await collect(bench, previous=True) == "run\n"


async def test_a_log_is_not_taken_for_that_of_a_container_of_a_longer_name(bench: Bench) -> None:
    bench.pod("p", containers=[container("c", "echo mine"), container("c-1", "echo other")], restartPolicy="Never")
    await ended(bench, "p")
    assert await collect(bench) == "mine\n"


async def test_a_log_of_what_has_not_started(bench: Bench) -> None:
    bench.pod("p", volumes=[{"name": "v", "nfs": {}}])
    with pytest.raises(StatusError, match='container "c" in pod "p" is waiting to start'):
        await collect(bench)


async def test_the_node_object(bench: Bench) -> None:
    node = bench.store.get("nodes", NODE)
    status = node["status"]
    assert {item["type"]: item["status"] for item in status["conditions"]}["Ready"] == "True"
    assert {"cpu", "memory", "pods"} <= status["allocatable"].keys()
    assert status["nodeInfo"]["kubeletVersion"] == "v1.36.0"
    assert node["metadata"]["labels"]["kubernetes.io/hostname"] == NODE


async def test_an_idle_node_writes_nothing(bench: Bench) -> None:
    await bench.registered()
    bench.pod("p")
    await running(bench, "p")
    await until(lambda: not bench.status("p").get("state", {}).get("waiting"))
    before = bench.store.writes
    bench.kubelet.publish()
    assert bench.store.writes == before
