"""Which strategy a resource has."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from driver.localcluster.apiserver import devices, workloads
from driver.localcluster.apiserver.strategy import PLAIN, Strategy
from driver.localcluster.apiserver.validation.admission import binding_errors, policy_errors
from driver.localcluster.apiserver.validation.events import event_errors

if TYPE_CHECKING:
    from collections.abc import Mapping

    from driver.localcluster.apiserver.resources import Resource

_STRATEGIES: Final[Mapping[str, Strategy]] = {
    "events": Strategy(validate=event_errors),
    "namespaces": workloads.NAMESPACE,
    "nodes": workloads.NODE,
    "pods": workloads.POD,
    "secrets": workloads.SECRET,
    "deployments": workloads.DEPLOYMENT,
    "replicasets": workloads.REPLICATED,
    "statefulsets": workloads.REPLICATED,
    "daemonsets": workloads.TEMPLATED,
    "jobs": workloads.JOB,
    "resourceslices": devices.SLICE,
    "resourceclaims": devices.CLAIM,
    "resourceclaimtemplates": devices.TEMPLATE,
    "deviceclasses": devices.CLASS,
    "validatingadmissionpolicies": Strategy(validate=policy_errors),
    "validatingadmissionpolicybindings": Strategy(validate=binding_errors),
}


def strategy_of(resource: Resource) -> Strategy:
    """Return a resource's strategy."""
    return _STRATEGIES.get(resource.plural, PLAIN)
