"""The objects that cases create; pure. A new case should need no more than these."""

from __future__ import annotations

from typing import Any

Object = dict[str, Any]

DRIVER = "gpu.nvidia.com"
CLASS = "gpu.nvidia.com"
LAST_LINE = "that is all"

TOLERATION = {"key": "nvidia.com/gpu", "operator": "Exists"}
SHOW = "nvidia-smi -L"
WAIT = "trap 'exit 0' TERM; while :; do sleep 3600 & wait $!; done"


def script(*lines: str, wait: bool = True) -> list[str]:
    """Return a command that runs lines of shell, says that it has, and then waits for its end (or ends)."""
    return ["sh", "-c", "\n".join([*lines, f"echo '{LAST_LINE}'", *([WAIT] if wait else [])])]


def cel(*expressions: str) -> list[Object]:
    """Return selectors."""
    return [{"cel": {"expression": expression}} for expression in expressions]


def attribute(name: str) -> str:
    """Return how CEL names an attribute of the driver's."""
    return f'device.attributes["{DRIVER}"].{name}'


def is_gpu(uuid: str) -> str:
    """Return the selector of one GPU."""
    return f'{attribute("uuid")} == "{uuid}"'


def exactly(count: int = 1, *selectors: str, class_: str = CLASS, **more: Any) -> Object:
    """Return the content of a request."""
    return {
        "deviceClassName": class_,
        **({"count": count} if count != 1 else {}),
        **({"selectors": cel(*selectors)} if selectors else {}),
        **more,
    }


def request(name: str = "gpu", count: int = 1, *selectors: str, **more: Any) -> Object:
    """Return a request for devices that selectors choose."""
    return {"name": name, "exactly": exactly(count, *selectors, **more)}


def first_available(name: str, *choices: Object) -> Object:
    """Return a request for the first of several choices that can be had; each is `subrequest`."""
    return {"name": name, "firstAvailable": list(choices)}


def subrequest(name: str, count: int = 1, *selectors: str, **more: Any) -> Object:
    """Return one choice of `first_available`."""
    return {"name": name, **exactly(count, *selectors, **more)}


def parameters(content: Object, *requests: str) -> Object:
    """Return an entry of a claim's or a class's `config` with parameters for the driver."""
    return {"requests": list(requests), "opaque": {"driver": DRIVER, "parameters": content}}


def match(name: str, *requests: str) -> Object:
    """Return the constraint that all devices have the same value of an attribute."""
    return {"requests": list(requests), "matchAttribute": f"{DRIVER}/{name}"}


def devices(*requests: Object, constraints: tuple[Object, ...] = (), config: tuple[Object, ...] = ()) -> Object:
    """Return the spec of a claim; without requests, one for a GPU."""
    content: Object = {"requests": list(requests) or [request()]}
    if constraints:
        content["constraints"] = list(constraints)
    if config:
        content["config"] = list(config)
    return {"devices": content}


def claim(name: str, spec: Object | None = None) -> Object:
    """Return a claim."""
    return _object("resource.k8s.io/v1", "ResourceClaim", name, spec or devices())


def template(name: str, spec: Object | None = None) -> Object:
    """Return a claim template."""
    return _object("resource.k8s.io/v1", "ResourceClaimTemplate", name, {"spec": spec or devices()})


def device_class(name: str, *selectors: str, **more: Any) -> Object:
    """Return a class of the driver's devices."""
    return _object(
        "resource.k8s.io/v1",
        "DeviceClass",
        name,
        {"selectors": cel(f"device.driver == '{DRIVER}'", *selectors), **more},
    )


def container(name: str = "main", *uses: str, command: list[str] | None = None, **more: Any) -> Object:
    """Return a container that uses claims (`gpu`, or `gpu/request`); it shows its GPUs and waits.

    The image is filled in where the object is created.
    """
    claims = [dict(zip(("name", "request"), use.split("/"), strict=False)) for use in uses]
    resources = {"resources": {"claims": claims}} if claims else {}
    return {"name": name, "command": command or script(SHOW), **resources, **more}


def from_template(template_name: str, name: str = "gpu") -> Object:
    """Return a pod's use of a claim template."""
    return {"name": name, "resourceClaimTemplateName": template_name}


def from_claim(claim_name: str, name: str = "gpu") -> Object:
    """Return a pod's use of a claim."""
    return {"name": name, "resourceClaimName": claim_name}


def pod_spec(claims: list[Object], *containers: Object, **more: Any) -> Object:
    """Return a pod's spec; without containers, one that uses the claim `gpu`."""
    return {
        "restartPolicy": "Never",
        "terminationGracePeriodSeconds": 5,
        "tolerations": [TOLERATION],
        "containers": list(containers) or [container("main", "gpu")],
        **({"resourceClaims": claims} if claims else {}),
        **more,
    }


def pod(name: str, claims: list[Object], *containers: Object, **more: Any) -> Object:
    """Return a pod; see `pod_spec`."""
    return _object("v1", "Pod", name, pod_spec(claims, *containers, **more))


def deployment(name: str, spec: Object, replicas: int = 1) -> Object:
    """Return a deployment of pods with this spec; the old ones go first, as their GPUs are needed."""
    labels = {"app": name}
    return _object(
        "apps/v1",
        "Deployment",
        name,
        {
            "replicas": replicas,
            "strategy": {"type": "Recreate"},
            "selector": {"matchLabels": labels},
            "template": {"metadata": {"labels": labels}, "spec": {**spec, "restartPolicy": "Always"}},
        },
    )


def job(name: str, spec: Object, **more: Any) -> Object:
    """Return a job of pods with this spec."""
    return _object("batch/v1", "Job", name, {"backoffLimit": 0, "template": {"spec": spec}, **more})


def _object(version: str, kind: str, name: str, spec: Object) -> Object:
    return {"apiVersion": version, "kind": kind, "metadata": {"name": name}, "spec": spec}
