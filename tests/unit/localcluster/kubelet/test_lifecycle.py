"""Hooks, grace periods and deadlines of pods."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from tests.waiting import until

from .test_claims import gone, running
from .test_pods import container, ended

if TYPE_CHECKING:
    from pathlib import Path

    from .conftest import Bench

UNTIL_TERM = "trap 'echo term; exit 0' TERM; echo up; while :; do sleep 0.01; done"


def shared(bench: Bench) -> dict[str, Any]:
    """A pod's volume that is the node's directory."""
    return {"volumes": [{"name": "v", "hostPath": {"path": str(bench.paths.root)}}]}


def hooked(bench: Bench, script: str, **hooks: str | dict[str, Any]) -> dict[str, Any]:
    """A container with hooks, which find the node's directory as $D."""
    where = f"D=/v; test -d $D || D={bench.paths.root}; "
    lifecycle = {
        name: hook if isinstance(hook, dict) else {"exec": {"command": ["sh", "-c", where + hook]}}
        for name, hook in hooks.items()
    }
    return container("c", where + script, lifecycle=lifecycle, volumeMounts=[{"name": "v", "mountPath": "/v"}])


def lines(path: Path) -> list[str]:
    return path.read_text(encoding="utf-8").split() if path.exists() else []


async def test_a_stop_hook_runs_before_the_signal(bench: Bench) -> None:
    seen = bench.paths.root / "seen"
    spec = hooked(bench, "trap 'echo term >> $D/seen; exit 0' TERM; touch $D/up; while :; do sleep 0.01; done",
                  preStop="echo hook >> $D/seen")  # fmt: skip
    bench.pod("p", containers=[spec], terminationGracePeriodSeconds=3000, **shared(bench))
    await until((bench.paths.root / "up").exists)
    bench.delete("p")
    await gone(bench, "p")
    assert lines(seen) == ["hook", "term"]
    assert not bench.events("FailedPreStopHook")


async def test_no_stop_hook_for_what_ends_by_itself(bench: Bench) -> None:
    spec = hooked(bench, "exit 0", preStop="touch $D/seen")
    bench.pod("p", containers=[spec], restartPolicy="Never", **shared(bench))
    assert await ended(bench, "p") == "Succeeded"
    assert not (bench.paths.root / "seen").exists()


async def test_a_stop_hook_has_no_more_than_the_grace(bench: Bench) -> None:
    spec = hooked(bench, UNTIL_TERM, preStop={"sleep": {"seconds": 1_000_000}})
    bench.pod("p", containers=[spec], terminationGracePeriodSeconds=1, **shared(bench))
    await running(bench, "p")
    bench.delete("p")
    await gone(bench, "p")
    assert bench.events("FailedPreStopHook") == ["PreStopHook failed: it did not end in time"]


async def test_a_stop_hook_that_fails_is_told(bench: Bench) -> None:
    spec = hooked(bench, UNTIL_TERM, preStop={"exec": {"command": ["no-such-program"]}})
    bench.pod("p", containers=[spec], terminationGracePeriodSeconds=3000, **shared(bench))
    await running(bench, "p")
    bench.delete("p")
    await gone(bench, "p")
    assert bench.events("FailedPreStopHook") == ["PreStopHook failed: command 'no-such-program' exited with 126"]


async def test_a_stop_hook_ends_with_its_container(bench: Bench) -> None:
    flag = bench.paths.root / "go"
    script = "touch $D/up; while ! test -e $D/go; do sleep 0.01; done; exit 7"
    spec = hooked(bench, script, preStop={"exec": {"command": ["sleep", "1000"]}})
    bench.pod("p", containers=[spec], terminationGracePeriodSeconds=1_000_000, **shared(bench))
    await until((bench.paths.root / "up").exists)
    bench.delete("p")
    await until(lambda: bench.events("Killing"))
    flag.touch()
    await gone(bench, "p")


@pytest.mark.parametrize("hook", [{}, {"preStop": {"sleep": {"seconds": 1_000_000}}}], ids=["signal", "hook"])
@pytest.mark.parametrize("grace", [1, 0])
async def test_the_grace_can_be_shortened(bench: Bench, hook: dict[str, Any], grace: int) -> None:
    spec = hooked(bench, "trap '' TERM; touch $D/up; while :; do sleep 0.01; done", **hook)
    bench.pod("p", containers=[spec], terminationGracePeriodSeconds=1_000_000, **shared(bench))
    await until((bench.paths.root / "up").exists)
    bench.delete("p")
    await until(lambda: bench.events("Killing"))
    bench.delete("p", grace=grace)
    await gone(bench, "p")
    await until(lambda: not bench.kubelet.runtime.containers)


async def test_a_liveness_probe_stops_with_the_hook(bench: Bench) -> None:
    probe = {"exec": {"command": ["false"]}, "periodSeconds": 1, "failureThreshold": 1, "timeoutSeconds": 10,
             "terminationGracePeriodSeconds": 3000}  # fmt: skip
    spec = hooked(bench, UNTIL_TERM, preStop="touch $D/seen") | {"livenessProbe": probe}
    bench.pod("p", containers=[spec], terminationGracePeriodSeconds=1, **shared(bench))
    await until(lambda: bench.status("p").get("restartCount", 0) >= 1)
    assert (bench.paths.root / "seen").exists()


async def test_a_start_hook_runs_before_the_container_counts_as_running(bench: Bench) -> None:
    flag = bench.paths.root / "go"
    spec = hooked(bench, "sleep 100", postStart="touch $D/seen; while ! test -e $D/go; do sleep 0.01; done")
    bench.pod("p", containers=[spec], **shared(bench))
    await until((bench.paths.root / "seen").exists)
    assert "waiting" in bench.status("p")["state"]
    flag.touch()
    await running(bench, "p")


async def test_a_start_hook_that_fails_ends_the_container(bench: Bench) -> None:
    spec = hooked(bench, UNTIL_TERM, postStart="exit 3")
    bench.pod("p", containers=[spec], restartPolicy="Never", terminationGracePeriodSeconds=3000, **shared(bench))
    await ended(bench, "p")
    assert bench.status("p")["restartCount"] == 0
    assert "exited with 3" in bench.events("FailedPostStartHook")[0]


@pytest.mark.parametrize("script", ["sleep 1000", "trap 'exit 0' TERM; while :; do sleep 0.01; done"])
async def test_a_pod_past_its_deadline_fails(bench: Bench, script: str) -> None:
    await bench.registered()
    bench.cdi("gpu-0")
    bench.claim("c1")
    bench.pod("p", "c1", script=script, activeDeadlineSeconds=100, restartPolicy="Always")
    assert await ended(bench, "p") == "Failed"
    status = bench.get("p")["status"]
    told = "Pod was active on the node longer than the specified deadline"
    assert (status["reason"], status["message"]) == ("DeadlineExceeded", told)
    assert bench.events("DeadlineExceeded") == [told]
    assert not list(bench.kubelet.claims.cache)
    await bench.kubelet.restart()
    bench.kubelet.publish()
    assert (bench.phase("p"), bench.get("p")["status"]["reason"]) == ("Failed", "DeadlineExceeded")


async def test_a_deadline_can_be_set_later(bench: Bench) -> None:
    bench.pod("p", script="sleep 1000", activeDeadlineSeconds=1_000_000)
    await running(bench, "p")
    bench.store.patch("pods", "p", {"spec": {"activeDeadlineSeconds": 1}}, "default")
    assert await ended(bench, "p") == "Failed"


async def test_a_pod_that_cannot_start_has_a_deadline_too(bench: Bench) -> None:
    bench.pod("p", volumes=[{"name": "v", "nfs": {}}], activeDeadlineSeconds=100)
    assert await ended(bench, "p") == "Failed"
    bench.delete("p")
    await gone(bench, "p")
