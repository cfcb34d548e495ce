"""Checks of a write that look at other objects: namespaces and service accounts must be there."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from driver.localcluster.apiserver import errors
from driver.localcluster.apiserver.objects import Object, metadata, name_of, namespace_of
from driver.localcluster.apiserver.resources import RESOURCES, Resource
from driver.localcluster.apiserver.validation.common import forbidden

if TYPE_CHECKING:
    from driver.localcluster.apiserver.store import Store

Admission = Callable[["Store", Resource, Object, Object | None], None]
"""A further check of a write: (store, resource, new object, old object or None). Raises `StatusError` to refuse."""

Gate = Callable[[Object | None, Object | None], None]
"""A check of one write that knows who writes: (new object or None, old object or None). Raises to refuse."""

_ADMIN_LABEL: Final = "resource.kubernetes.io/admin-access"
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


def admin_access_is_allowed(store: Store, kind: Resource, new: Object, old: Object | None) -> None:
    """Refuse claims and templates with admin access where the namespace's label does not allow it."""
    if old is not None or kind.plural not in ("resourceclaims", "resourceclaimtemplates"):
        return
    path, spec = "spec", new.get("spec") or {}
    if kind.plural == "resourceclaimtemplates":
        path, spec = "spec.spec", spec.get("spec") or {}
    fields = [
        f"{path}.devices.requests[{at}].exactly.adminAccess"
        for at, request in enumerate((spec.get("devices") or {}).get("requests") or ())
        if (request.get("exactly") or {}).get("adminAccess")
    ]
    namespace = store.find("namespaces", namespace_of(new)) or {}
    if fields and (metadata(namespace).get("labels") or {}).get(_ADMIN_LABEL) != "true":
        text = f"admin access to devices requires the `{_ADMIN_LABEL}: true` label on the containing namespace"
        raise errors.invalid(kind, name_of(new), [forbidden(field, text) for field in fields])


def check_deletion(kind: Resource, name: str) -> None:
    """Refuse to delete the cluster's own namespaces.

    :raises StatusError: 403.
    """
    if kind.plural == "namespaces" and name in _PROTECTED:
        raise errors.forbidden(kind, name, "this namespace may not be deleted")


STANDARD: Final[tuple[Admission, ...]] = (
    namespace_exists,
    service_account_exists,
    admin_access_is_allowed,
)
"""What every cluster checks."""
