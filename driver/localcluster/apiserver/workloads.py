"""Defaults of the core and workload kinds: what other parts of the cluster and users rely on. Pure."""

from __future__ import annotations

import base64
from typing import TYPE_CHECKING, Any

from driver.localcluster.apiserver import dropping
from driver.localcluster.apiserver.objects import Object, metadata
from driver.localcluster.apiserver.strategy import Strategy
from driver.localcluster.apiserver.validation.pods import pod_errors, template_errors

if TYPE_CHECKING:
    from collections.abc import Mapping

    from driver.localcluster.apiserver.strategy import Rules

_GRACE = 30
_COMPUTE = ("cpu", "memory")


def _fill(target: Object, defaults: Mapping[str, Any]) -> None:
    for key, value in defaults.items():
        target.setdefault(key, value)


def _prepare_namespace(obj: Object, old: Object | None, rules: Rules) -> None:
    if old is None:
        obj["spec"] = {"finalizers": ["kubernetes"]}
        obj["status"] = {"phase": "Active"}
        metadata(obj)["labels"] = {
            **(metadata(obj).get("labels") or {}),
            "kubernetes.io/metadata.name": metadata(obj)["name"],
        }


def _prepare_node(obj: Object, old: Object | None, rules: Rules) -> None:
    """Give it a spec, as every Node has one: expressions of policies rely on that."""
    obj.setdefault("spec", {})


def _prepare_pod(obj: Object, old: Object | None, rules: Rules) -> None:
    spec = obj.setdefault("spec", {})
    default_pod_spec(spec)
    if old is None:
        spec.setdefault("serviceAccountName", "default")
        spec.setdefault("enableServiceLinks", True)
        spec.setdefault("tolerations", [])
        obj["status"] = {"phase": "Pending", "qosClass": _qos(spec)}
    if isinstance(status := obj.get("status"), dict):
        dropping.drop_from_pod_status(status, rules.features)


def default_pod_spec(spec: Object) -> None:
    """Fill in a pod's spec as the server does, in a pod as in a template of one."""
    _fill(
        spec,
        {
            "restartPolicy": "Always",
            "dnsPolicy": "ClusterFirst",
            "schedulerName": "default-scheduler",
            "terminationGracePeriodSeconds": _GRACE,
            "securityContext": {},
        },
    )
    for container in (*(spec.get("initContainers") or ()), *(spec.get("containers") or ())):
        _default_container(container)


def _default_container(container: Object) -> None:
    image = str(container.get("image") or "")
    latest = image.endswith(":latest") or ":" not in image.rsplit("/", 1)[-1]
    _fill(
        container,
        {
            "imagePullPolicy": "Always" if latest else "IfNotPresent",
            "resources": {},
            "terminationMessagePath": "/dev/termination-log",
            "terminationMessagePolicy": "File",
        },
    )
    for port in container.get("ports") or ():
        port.setdefault("protocol", "TCP")
    for kind in ("startupProbe", "readinessProbe", "livenessProbe"):
        _default_probe(container.get(kind))
    resources = container["resources"]
    if resources.get("limits"):
        resources["requests"] = {**resources["limits"], **(resources.get("requests") or {})}


def _default_probe(probe: Object | None) -> None:
    if probe:
        _fill(probe, {"timeoutSeconds": 1, "periodSeconds": 10, "successThreshold": 1, "failureThreshold": 3})
        if probe.get("httpGet"):
            _fill(probe["httpGet"], {"path": "/", "scheme": "HTTP"})


def _qos(spec: Object) -> str:
    """Return the class by CPU and memory alone: what a device costs says nothing about it."""
    containers = [*(spec.get("initContainers") or ()), *(spec.get("containers") or ())]
    resources = [container.get("resources") or {} for container in containers]
    limits, requests = ([_compute(r.get(kind)) for r in resources] for kind in ("limits", "requests"))
    if not any(limits) and not any(requests):
        return "BestEffort"
    return "Guaranteed" if limits == requests and all(len(limit) == len(_COMPUTE) for limit in limits) else "Burstable"


def _compute(amounts: Object | None) -> Object:
    return {name: amount for name, amount in (amounts or {}).items() if name in _COMPUTE}


def _prepare_secret(obj: Object, old: Object | None, rules: Rules) -> None:
    """Move what was written as text to where it is read."""
    text = obj.pop("stringData", None)
    obj.setdefault("type", "Opaque")
    if text:
        encoded = {key: base64.b64encode(value.encode()).decode() for key, value in text.items()}
        obj["data"] = {**(obj.get("data") or {}), **encoded}


def _prepare_replicated(obj: Object, old: Object | None, rules: Rules) -> None:
    spec = obj.setdefault("spec", {})
    spec.setdefault("replicas", 1)
    _prepare_template(obj, old, rules)


def _prepare_template(obj: Object, old: Object | None, rules: Rules) -> None:
    template = obj.setdefault("spec", {}).get("template")
    if isinstance(template, dict):
        default_pod_spec(template.setdefault("spec", {}))


def _prepare_deployment(obj: Object, old: Object | None, rules: Rules) -> None:
    _prepare_replicated(obj, old, rules)
    _fill(obj["spec"], {"revisionHistoryLimit": 10, "progressDeadlineSeconds": 600})
    strategy = obj["spec"].setdefault("strategy", {})
    strategy.setdefault("type", "RollingUpdate")
    if strategy["type"] == "RollingUpdate":
        _fill(strategy.setdefault("rollingUpdate", {}), {"maxSurge": "25%", "maxUnavailable": "25%"})


def _prepare_job(obj: Object, old: Object | None, rules: Rules) -> None:
    _prepare_template(obj, old, rules)
    spec = obj["spec"]
    _fill(spec, {"parallelism": 1, "completions": 1, "backoffLimit": 6, "completionMode": "NonIndexed"})
    _fill(spec, {"suspend": False})
    if old is None and not spec.get("manualSelector"):
        labels = {"batch.kubernetes.io/job-name": metadata(obj)["name"], "job-name": metadata(obj)["name"]}
        template = spec.setdefault("template", {}).setdefault("metadata", {})
        template["labels"] = {**(template.get("labels") or {}), **labels}
        spec["selector"] = {"matchLabels": {"batch.kubernetes.io/job-name": metadata(obj)["name"]}}


NAMESPACE = Strategy(prepare=_prepare_namespace)
NODE = Strategy(prepare=_prepare_node)
SECRET = Strategy(prepare=_prepare_secret)
POD = Strategy(prepare=_prepare_pod, validate=pod_errors)
DEPLOYMENT = Strategy(prepare=_prepare_deployment, validate=template_errors)
REPLICATED = Strategy(prepare=_prepare_replicated, validate=template_errors)
TEMPLATED = Strategy(prepare=_prepare_template, validate=template_errors)
JOB = Strategy(prepare=_prepare_job, validate=template_errors)
