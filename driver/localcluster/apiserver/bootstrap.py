"""The objects that every cluster has from the start."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from driver.localcluster.apiserver.resources import RESOURCES

if TYPE_CHECKING:
    from driver.localcluster.apiserver.store import Store

_NAMESPACES: Final = ("default", "kube-node-lease", "kube-public", "kube-system")
_READ: Final = ["get", "list", "watch"]
_USERS: Final = {
    "view": (_READ, {"secrets", "roles", "rolebindings"}),
    "edit": (["*"], {"roles", "rolebindings"}),
    "admin": (["*"], set[str]()),
}
"""What the roles for users of a namespace allow, and of which of its resources nothing."""
_PRIORITIES: Final = {"system-cluster-critical": 2_000_000_000, "system-node-critical": 2_000_001_000}


def bootstrap(store: Store) -> None:
    """Create them; those that are there already stay."""
    for name in _NAMESPACES:
        if store.find("namespaces", name) is None:
            store.create("namespaces", {"metadata": {"name": name}})
    for name, value in _PRIORITIES.items():
        if store.find("priorityclasses", name) is None:
            store.create("priorityclasses", {"metadata": {"name": name}, "value": value})
    if store.find("clusterroles", "cluster-admin") is None:
        _administrators(store)
        _users(store)


def _administrators(store: Store) -> None:
    everything = {"apiGroups": ["*"], "resources": ["*"], "verbs": ["*"]}
    store.create("clusterroles", {"metadata": {"name": "cluster-admin"}, "rules": [everything]})
    store.create(
        "clusterrolebindings",
        {
            "metadata": {"name": "cluster-admin"},
            "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "cluster-admin"},
            "subjects": [{"apiGroup": "rbac.authorization.k8s.io", "kind": "Group", "name": "system:masters"}],
        },
    )


def _users(store: Store) -> None:
    """Create the roles that are bound in a namespace."""
    for name, (verbs, hidden) in _USERS.items():
        rules = [
            {
                "apiGroups": [kind.group],
                "resources": [kind.plural, *(f"{kind.plural}/{subresource}" for subresource in kind.subresources)],
                "verbs": list(verbs),
            }
            for kind in RESOURCES.values()
            if kind.namespaced and kind.plural not in hidden
        ]
        store.create("clusterroles", {"metadata": {"name": name}, "rules": rules})
