"""The embedded cluster as a whole: what a person with `kubectl`, and an agent, meet."""

from __future__ import annotations

import asyncio
import json
import re
import signal
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from driver.errors import InvalidValueError
from driver.localcluster.apiserver.execution import ExecRequest
from driver.localcluster.apiserver.objects import lookup
from driver.localcluster.cluster import LocalCluster
from tests.unit.localcluster.kubelet.plugins import DraPlugin, device
from tests.waiting import until

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

DRIVER = "gpu.rec.example"
KUBECTL = Path(sys.executable).with_name("kubectl")


@pytest.fixture
async def cluster(short_tmp: Path) -> AsyncIterator[LocalCluster]:
    async with LocalCluster(short_tmp, nodes=("a", "b"), time_scale=0.01) as cluster:
        yield cluster


@pytest.fixture
async def plugin(cluster: LocalCluster) -> AsyncIterator[DraPlugin]:
    """A driver on node b with two GPUs."""
    node = cluster.node("b")
    plugin = DraPlugin(node.kubelet.paths)
    plugin.answer = lambda method, claim: {"devices": [device(cdi=["rec.example/gpu=gpu-0"], request="gpu")]}
    await plugin.start()
    spec = {"cdiVersion": "0.6.0", "kind": "rec.example/gpu"}
    devices = [{"name": "gpu-0", "containerEdits": {"env": ["GPU=gpu-0"]}}]
    (node.cdi_dirs[1] / "a.json").write_text(json.dumps({**spec, "devices": devices}), encoding="utf-8")
    await until(lambda: plugin.status)
    pool = {"name": "b", "generation": 1, "resourceSliceCount": 1}
    gpus = [{"name": f"gpu-{number}"} for number in range(2)]
    body = {"driver": DRIVER, "nodeName": "b", "pool": pool, "devices": gpus}
    cluster.store.create("resourceslices", {"metadata": {"name": "s"}, "spec": body})
    cluster.store.create(
        "deviceclasses",
        {"metadata": {"name": "gpu"}, "spec": {"selectors": [{"cel": {"expression": f"device.driver == '{DRIVER}'"}}]}},
    )
    yield plugin
    await plugin.kill()


def phase(cluster: LocalCluster, name: str) -> str:
    return str(lookup(cluster.store.find("pods", name, "default") or {}, "status.phase"))


async def kubectl(cluster: LocalCluster, *arguments: str) -> str:
    process = await asyncio.create_subprocess_exec(
        str(KUBECTL), "--kubeconfig", str(cluster.kubeconfig), *arguments,
        stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT,
    )  # fmt: skip
    output = (await process.communicate())[0].decode()
    assert process.returncode == 0, output
    return output


async def test_nodes_are_ready_from_the_start(cluster: LocalCluster) -> None:
    nodes = cluster.store.list("nodes")
    assert [node["metadata"]["name"] for node in nodes] == ["a", "b"]
    for node in nodes:
        assert {item["type"]: item["status"] for item in node["status"]["conditions"]}["Ready"] == "True"


async def test_a_node_is_described_without_complaint(cluster: LocalCluster) -> None:
    described = await kubectl(cluster, "describe", "node", "a")
    assert "HolderIdentity:  a" in described
    assert "ailed" not in described
    first = cluster.store.get("leases", "a", "kube-node-lease")
    await cluster.node("a").kubelet.restart()
    assert cluster.store.get("leases", "a", "kube-node-lease")["metadata"]["uid"] == first["metadata"]["uid"]


async def test_events_of_one_second_come_in_their_order(cluster: LocalCluster) -> None:
    spec = {"containers": [{"name": "c", "image": "busybox", "command": ["true"]}], "restartPolicy": "Never"}
    cluster.store.create("pods", {"metadata": {"name": "p"}, "spec": spec}, "default")
    await until(lambda: phase(cluster, "p") == "Succeeded")
    reasons = [event["reason"] for event in cluster.store.list("events", "default")]
    assert reasons == ["Scheduled", "Pulled", "Created", "Started"]


async def test_a_claim_from_template_to_log_and_back(cluster: LocalCluster, plugin: DraPlugin) -> None:
    request = {"name": "gpu", "exactly": {"deviceClassName": "gpu"}}
    template = {"metadata": {"name": "one"}, "spec": {"spec": {"devices": {"requests": [request]}}}}
    cluster.store.create("resourceclaimtemplates", template, "default")
    container = {
        "name": "c",
        "image": "busybox",
        "command": ["sh", "-c", "echo see $GPU; sleep 100"],
        "resources": {"claims": [{"name": "g"}]},
    }
    spec = {"containers": [container], "resourceClaims": [{"name": "g", "resourceClaimTemplateName": "one"}]}
    for name in ("p1", "p2", "p3"):
        cluster.store.create("pods", {"metadata": {"name": name}, "spec": spec}, "default")
    await until(lambda: [phase(cluster, name) for name in ("p1", "p2")] == ["Running"] * 2)
    assert phase(cluster, "p3") == "Pending"
    pod = cluster.store.get("pods", "p1", "default")
    assert pod["spec"]["nodeName"] == "b"
    assert [item["type"] for item in pod["status"]["conditions"]].count("PodScheduled") == 1
    await until(lambda: cluster.node("b").kubelet.log_path(pod["metadata"]["uid"], "c").read_bytes())  # type: ignore[union-attr]
    assert await kubectl(cluster, "logs", "p1") == "see gpu-0\n"
    stamped = await kubectl(cluster, "logs", "p1", "--timestamps", "--since=1h", "--tail=1")
    assert re.fullmatch(r"2\d{3}-\S+Z see gpu-0\n", stamped)
    assert await kubectl(cluster, "logs", "p1", "--since-time=2999-01-01T00:00:00Z") == ""
    await kubectl(cluster, "delete", "pod", "p1")
    await until(lambda: phase(cluster, "p3") == "Running", "the third gets the first's GPU")
    for name in ("p2", "p3"):
        cluster.store.delete("pods", name, "default")
    await until(lambda: not cluster.store.list("resourceclaims"), "generated claims go with their pods")
    assert plugin.recorder.methods().count("NodeUnprepareResources") == 3


async def run(cluster: LocalCluster, *arguments: str, stdin: bytes = b"") -> tuple[int | None, str, str]:
    """Run kubectl, with input; return its status, output and errors."""
    pipe = asyncio.subprocess.PIPE
    process = await asyncio.create_subprocess_exec(
        str(KUBECTL), "--kubeconfig", str(cluster.kubeconfig), *arguments, stdin=pipe, stdout=pipe, stderr=pipe
    )
    async with asyncio.timeout(30):
        out, err = await process.communicate(stdin)
    return process.returncode, out.decode(), err.decode()


@pytest.fixture
async def shell(cluster: LocalCluster) -> str:
    """Run a pod with an environment of its own; return its name."""
    container = {"name": "c", "image": "busybox", "command": ["sleep", "100"], "env": [{"name": "A", "value": "b"}]}
    cluster.store.create("pods", {"metadata": {"name": "p"}, "spec": {"containers": [container]}}, "default")
    await until(lambda: phase(cluster, "p") == "Running")
    return "p"


async def test_commands_in_containers(cluster: LocalCluster, shell: str) -> None:
    assert await run(cluster, "exec", shell, "--", "sh", "-c", "echo $A; echo no >&2") == (0, "b\n", "no\n")
    status, out, err = await run(cluster, "exec", shell, "--", "sh", "-c", "exit 3")
    assert (status, out) == (3, "")
    assert "command terminated with exit code 3" in err
    text = b"".join(b"%d\n" % number for number in range(50_000))
    assert await run(cluster, "exec", "-i", shell, "--", "cat", stdin=text) == (0, text.decode(), "")
    status, out, err = await run(cluster, "exec", shell, "--", "no-such-program")
    assert status == 126
    assert 'exec: "no-such-program": executable file not found in $PATH' in err


async def test_a_command_on_a_terminal(cluster: LocalCluster, shell: str) -> None:
    execution = await cluster.node(cluster.store.get("pods", "p", "default")["spec"]["nodeName"]).kubelet.exec(
        ExecRequest(pod=cluster.store.get("pods", shell, "default"), container="c", command=("sh",), tty=True)
    )
    execution.resize(100, 30)
    await execution.write(b"stty size; tty; exit 4\n")
    seen = b""
    while data := await execution.read(1):
        seen += data
    assert b"30 100" in seen
    assert b"/dev/pts/" in seen
    assert await execution.wait() == 4
    await execution.aclose()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("exec", "nobody", "--", "true"), '"nobody" not found'),
        (("exec", "p", "-c", "other", "--", "true"), "container other is not valid for pod p"),
        (("exec", "waiting", "--", "true"), 'container not found ("c"): it does not run'),
        (("attach", "p"), "the embedded cluster has no attach to pods"),
    ],
)
async def test_commands_that_cannot_be_run(cluster: LocalCluster, shell: str, arguments: Any, message: str) -> None:
    idle = {"containers": [{"name": "c", "image": "busybox"}], "nodeSelector": {"no": "node"}}
    cluster.store.create("pods", {"metadata": {"name": "waiting"}, "spec": idle}, "default")
    status, _, err = await run(cluster, *arguments)
    assert status == 1
    assert message in err


async def test_a_client_that_goes_ends_its_command(cluster: LocalCluster, shell: str) -> None:
    process = await asyncio.create_subprocess_exec(
        *(str(KUBECTL), "--kubeconfig", str(cluster.kubeconfig), "exec", shell, "--"),
        *("sh", "-c", "echo $$; exec sleep 100"),
        stdout=asyncio.subprocess.PIPE,
    )
    assert process.stdout is not None
    command = Path("/proc", (await process.stdout.readline()).decode().strip())
    assert command.exists()
    process.kill()
    await process.wait()
    await until(lambda: not command.exists())


async def test_a_service_account_may_do_what_its_roles_allow(cluster: LocalCluster) -> None:
    await kubectl(cluster, "create", "serviceaccount", "reader")
    token = (await kubectl(cluster, "create", "token", "reader")).strip()
    mine = (f"--token={token}",)
    status, _, err = await run(cluster, "get", "pods", *mine)
    assert status == 1
    assert 'pods is forbidden: User "system:serviceaccount:default:reader" cannot list resource "pods"' in err
    assert await run(cluster, "auth", "can-i", "get", "pods", "--as=system:serviceaccount:default:reader") == (
        1,
        "no\n",
        "",
    )
    await kubectl(cluster, "create", "rolebinding", "reader", "--clusterrole=view", "--serviceaccount=default:reader")
    assert (await run(cluster, "get", "pods,resourceclaims", *mine))[0] == 0
    rules = [line.split() for line in (await kubectl(cluster, "auth", "can-i", "--list", *mine)).splitlines()]
    assert ["configmaps", "[]", "[]", "[get", "list", "watch]"] in rules
    for verb, what in (("get", "secrets"), ("create", "pods"), ("list", "resourceslices")):
        assert (await run(cluster, "auth", "can-i", verb, what, *mine))[1] == "no\n"


async def test_logs_of_a_pod_without_a_node_are_refused(cluster: LocalCluster) -> None:
    spec = {"containers": [{"name": "c", "image": "x"}], "nodeSelector": {"no": "such"}}
    cluster.store.create("pods", {"metadata": {"name": "p"}, "spec": spec}, "default")
    with pytest.raises(AssertionError, match="pod p does not have a host assigned"):
        await kubectl(cluster, "logs", "p")


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ({"nodes": ()}, "at least one name"),
        ({"nodes": ("a", "a")}, "none twice"),
        ({"nodes": ("A_",)}, "DNS subdomain"),
        ({"kubernetes": "1.20"}, "one of 1.34"),
        ({"feature_gates": {"Nope": True}}, "feature-gates: invalid value 'Nope'"),
        ({"time_scale": 0}, "a number above 0"),
    ],
)
def test_what_cannot_be_is_refused(short_tmp: Path, more: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidValueError, match=message):
        LocalCluster(short_tmp, **more)


def test_a_root_that_is_too_long_for_sockets_is_refused() -> None:
    with pytest.raises(InvalidValueError, match=r"^root: .* a path that is shorter by 44 bytes: Unix sockets"):
        LocalCluster(Path("/" + "x" * 99), nodes=["n"])


async def test_as_a_command(short_tmp: Path) -> None:
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "driver.localcluster", "--root", str(short_tmp), "--nodes", "2", "--kubernetes", "1.35",
        stdout=asyncio.subprocess.PIPE,
    )  # fmt: skip
    assert process.stdout is not None
    said = json.loads(await process.stdout.readline())
    assert set(said["nodes"]) == {"node-1", "node-2"}
    assert Path(said["KUBECONFIG"]).exists()
    for node in said["nodes"].values():
        assert Path(node["kubeletRoot"], "plugins_registry").is_dir()
        assert all(Path(path).is_dir() for path in node["cdiDirs"])
        assert node["agent"][:2] == ["gpu-dra", "run"]
    process.send_signal(signal.SIGTERM)
    assert await process.wait() == 0


async def test_a_command_that_cannot_start_says_why(short_tmp: Path) -> None:
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "driver.localcluster", "--root", str(short_tmp), "--feature-gates", "Nope=true",
        stderr=asyncio.subprocess.PIPE,
    )  # fmt: skip
    assert "feature-gates: invalid value 'Nope'" in (await process.communicate())[1].decode()
    assert process.returncode == 1


async def test_the_cluster_goes_on_after_its_api_server_was_away(cluster: LocalCluster) -> None:
    """What shares its process goes on all the time, as it does beside a real one that is only slow to come back."""
    await cluster.apiserver.stop()
    await cluster.apiserver.start()
    job = {
        "template": {
            "spec": {"containers": [{"name": "c", "image": "busybox", "command": ["true"]}], "restartPolicy": "Never"}
        }
    }
    cluster.store.create("jobs", {"metadata": {"name": "j"}, "spec": job}, "default")
    await until(lambda: lookup(cluster.store.find("jobs", "j", "default") or {}, "status.succeeded"))
