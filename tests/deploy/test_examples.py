from __future__ import annotations

import json
import re

import jsonschema
import pytest

from driver.config.parameters import decode
from driver.localcluster.scheduler import cel
from tests.deploy.manifests import DEPLOY, EXAMPLES, build, load

CLASSES = [item for item in build("base") if item["kind"] == "DeviceClass"]


def claim_specs(objects):
    """The claims' specs by the reference with which a pod names them."""
    return {
        (item["kind"], item["metadata"]["name"]): item["spec"]["spec"]
        if item["kind"] == "ResourceClaimTemplate"
        else item["spec"]
        for item in objects
        if item["kind"].startswith("ResourceClaim")
    }


def requests(spec):
    return {request["name"]: choices(request) for request in spec["devices"]["requests"]}


def choices(request):
    return request.get("firstAvailable") or [request["exactly"]]


def pod_specs(objects):
    templates = [item["spec"]["template"]["spec"] for item in objects if item["kind"] == "Deployment"]
    return [*(item["spec"] for item in objects if item["kind"] == "Pod"), *templates]


def uses(container):
    """The container's claims; one that asks for an extended resource instead has none."""
    resources = container["resources"]
    assert resources.get("claims") or resources["limits"].keys() == {"nvidia.com/gpu"}
    return resources.get("claims", [])


def selectors(spec):
    return [selector["cel"]["expression"] for selector in spec.get("selectors", [])]


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_every_reference_resolves(path):
    objects = load(path)
    claims = claim_specs(objects)
    pods = pod_specs(objects)
    used = set()
    assert pods
    for pod in pods:
        by_name = {}
        for entry in pod.get("resourceClaims", []):
            kind = "ResourceClaim" if "resourceClaimName" in entry else "ResourceClaimTemplate"
            reference = (kind, entry.get("resourceClaimName") or entry["resourceClaimTemplateName"])
            by_name[entry["name"]] = claims[reference]
            used.add(reference)
        for container in pod["containers"]:
            for claim in uses(container):
                assert claim.get("request", next(iter(requests(by_name[claim["name"]])))) in requests(
                    by_name[claim["name"]]
                )
        volumes = {volume["name"] for volume in pod.get("volumes", [])}
        mounts = {mount["name"] for container in pod["containers"] for mount in container.get("volumeMounts", [])}
        assert mounts == volumes
    assert used == set(claims)


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_claims_name_classes_and_requests_that_exist(path):
    for spec in claim_specs(load(path)).values():
        named = requests(spec)
        assert {choice["deviceClassName"] for request in named.values() for choice in request} <= {
            item["metadata"]["name"] for item in CLASSES
        }
        for constraint in spec["devices"].get("constraints", []):
            assert set(constraint["requests"]) <= set(named)


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_selectors_compile(path):
    for spec in claim_specs(load(path)).values():
        for request in requests(spec).values():
            for expression in [one for choice in request for one in selectors(choice)]:
                assert cel.compile(expression)


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_names_do_not_clash_and_the_file_says_what_it_is_for(path):
    objects = load(path)
    names = [(item["kind"], item["metadata"]["name"]) for item in objects]
    assert len(names) == len(set(names))
    assert path.read_text().startswith("# ")
    for item in objects:
        assert re.fullmatch(r"[a-z0-9-]+", item["metadata"]["name"])


def test_the_classes_tell_gpus_from_partitions():
    gpu = cel.variables("gpu.nvidia.com", {"gpu.nvidia.com": {"type": "gpu"}}, {})
    mig = cel.variables("gpu.nvidia.com", {"gpu.nvidia.com": {"type": "mig"}}, {})
    other = cel.variables("nic.example.com", {"gpu.nvidia.com": {"type": "gpu"}}, {})
    chosen = {
        item["metadata"]["name"]: [cel.compile(*selectors(item["spec"])).matches(it) for it in (gpu, mig, other)]
        for item in CLASSES
    }
    assert chosen == {"gpu.nvidia.com": [True, False, False], "mig.nvidia.com": [False, True, False]}


def parameters(path):
    """The opaque parameters of an example's claims."""
    configs = [config for spec in claim_specs(load(path)).values() for config in spec["devices"].get("config", [])]
    return [config["opaque"]["parameters"] for config in configs]


def test_parameters_are_what_the_shipped_schema_and_the_driver_take():
    schema = json.loads((DEPLOY / "parameters.schema.json").read_text())
    found = [content for path in EXAMPLES for content in parameters(path)]
    assert found
    for content in found:
        jsonschema.validate(content, schema)
        decode(content, "parameters")


def test_there_are_examples():
    assert {path.stem for path in EXAMPLES} >= {
        "whole-gpu",
        "four-h100",
        "by-memory",
        "nvlink-pair",
        "shared-between-containers",
        "shared-between-pods",
        "fallback-list",
        "extended-resource",
        "mig-partition",
        "time-slicing",
        "mps",
        "gpu-share",
        "vllm",
    }
    assert "examples/" in (DEPLOY / "README.md").read_text()


def test_the_overview_lists_every_example():
    text = (DEPLOY / "examples/README.md").read_text()
    assert set(re.findall(r"^\| `([a-z0-9-]+)\.yaml` \|", text, re.MULTILINE)) == {path.stem for path in EXAMPLES}
