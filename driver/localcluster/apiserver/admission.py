"""Checks of a write that look at other objects: namespaces and service accounts must be there."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from driver.localcluster.apiserver import errors
from driver.localcluster.apiserver.objects import Object, metadata, name_of, namespace_of
from driver.localcluster.apiserver.resources import RESOURCES, Resource

if TYPE_CHECKING:
    from driver.localcluster.apiserver.store import Store

Admission = Callable[["Store", Resource, Object, Object | None], None]
"""A further check of a write: (store, resource, new object, old object or None). Raises `StatusError` to refuse."""


_PROTECTED: Final = ("default", "kube-public", "kube-system")


def namespace_exists(store: Store, kind: Resource, new: Object, old: Object | None) -> None:
    """Refuse what is created in a namespace that is missing (404) or going away (403)."""
    if old is not None or not kind.namespaced:
        return
    namespace = store.find("namespaces", namespace_of(new))
    if namespace is None:
        raise errors.not_found(RESOURCES["namespaces"], namespace_of(new))
    if metadata(namespace).get("deletionTimestamp"):
        why = f"unable to create new content in namespace {namespace_of(new)} because it is being terminated"
        raise errors.forbidden(kind, name_of(new), why)


def service_account_exists(store: Store, kind: Resource, new: Object, old: Object | None) -> None:
    """Refuse a pod whose service account is missing; `default` needs no object here."""
    if old is not None or kind.plural != "pods":
        return
    account = (new.get("spec") or {}).get("serviceAccountName") or "default"
    if account != "default" and store.find("serviceaccounts", account, namespace_of(new)) is None:
        where = f"{namespace_of(new)}/{name_of(new)}"
        why = f'error looking up service account {where.split("/")[0]}/{account}: serviceaccount "{account}" not found'
        raise errors.forbidden(kind, name_of(new), why)


def check_deletion(kind: Resource, name: str) -> None:
    """Refuse to delete the cluster's own namespaces.

    :raises StatusError: 403.
    """
    if kind.plural == "namespaces" and name in _PROTECTED:
        raise errors.forbidden(kind, name, "this namespace may not be deleted")


STANDARD: Final[tuple[Admission, ...]] = (namespace_exists, service_account_exists)
"""What every cluster checks."""
