"""The base, as it is installed, on an API server that enforces its RBAC and its admission policies."""

from __future__ import annotations

from typing import TYPE_CHECKING

from driver.localcluster.apiserver.resources import RESOURCES
from tests.deploy.manifests import build

if TYPE_CHECKING:
    from pathlib import Path

    from driver.localcluster.apiserver import ApiServer

ACCOUNT = ("gpu-dra", "gpu-dra")
"""Namespace and name of the agent's service account."""
USER = "system:serviceaccount:gpu-dra:gpu-dra"


def install(api: ApiServer, name: str = "base") -> None:
    """Create what kubectl builds of a kustomization, in its order."""
    plurals = {resource.kind: plural for plural, resource in RESOURCES.items()}
    for item in build(name):
        api.store.create(plurals[item["kind"]], item, item["metadata"].get("namespace"))


def agents_kubeconfig(api: ApiServer, node: str) -> Path:
    """Write a kubeconfig with the token that the agent's pod on a node has."""
    return api.kubeconfig_for_service_account(*ACCOUNT, node=node)
