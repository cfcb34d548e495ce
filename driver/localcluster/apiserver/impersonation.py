"""Acting as somebody else: `kubectl --as`, which shows what RBAC allows to whom.

Source: https://kubernetes.io/docs/reference/access-authn-authz/user-impersonation/. Pure.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final
from urllib.parse import unquote

from driver.localcluster.apiserver.audit import Call
from driver.localcluster.apiserver.errors import bad_request
from driver.localcluster.apiserver.identity import ANONYMOUS, User

if TYPE_CHECKING:
    from collections.abc import Iterator

    from multidict import CIMultiDictProxy

    from driver.localcluster.apiserver.authorization import Authorizer

_USER: Final = "Impersonate-User"
_EXTRA: Final = "impersonate-extra-"
_ACCOUNT: Final = "system:serviceaccount:"
_EVERYBODY: Final = "system:authenticated"


def acting(headers: CIMultiDictProxy[str], user: User, authorizer: Authorizer) -> User:
    """Return who a request is to be answered as: its user, or whom that wants to be.

    :raises StatusError: 400 if it is not said who, 403 if the user may not be that.
    """
    name = headers.get(_USER)
    if user is ANONYMOUS:
        return user
    if not name:
        if any(key.lower().startswith("impersonate-") for key in headers):
            raise bad_request(f"groups, UIDs and extras can be impersonated with a user only: {_USER} is missing")
        return user
    groups = headers.getall("Impersonate-Group", [])
    extra: dict[str, list[str]] = {}
    for key, value in headers.items():
        if key.lower().startswith(_EXTRA):
            extra.setdefault(unquote(key[len(_EXTRA) :]).lower(), []).append(value)
    for call in _calls(user, name, groups, extra):
        authorizer.check(user, call)
    uid = headers.get("Impersonate-Uid", "")
    return User(name=name, groups=tuple(dict.fromkeys([*(groups or _own(name)), _EVERYBODY])), uid=uid, extra=extra)


def _calls(user: User, name: str, groups: list[str], extra: dict[str, list[str]]) -> Iterator[Call]:
    """Yield what the user must be allowed to."""
    namespace, _, account = name.removeprefix(_ACCOUNT).partition(":")
    if name.startswith(_ACCOUNT) and account:
        yield _call(user, "serviceaccounts", account, namespace=namespace)
    else:
        yield _call(user, "users", name)
    for group in groups:
        yield _call(user, "groups", group)
    for key, values in extra.items():
        for value in values:
            yield _call(user, "userextras", value, group="authentication.k8s.io", subresource=key)


def _call(user: User, resource: str, name: str, *, namespace: str = "", group: str = "", subresource: str = "") -> Call:
    return Call(
        user=user.name, verb="impersonate", path="", resource=resource, name=name, namespace=namespace, group=group,
        subresource=subresource,
    )  # fmt: skip


def _own(name: str) -> list[str]:
    """Return the groups that a service account is in by itself."""
    namespace, _, account = name.removeprefix(_ACCOUNT).partition(":")
    if name.startswith(_ACCOUNT) and account:
        return ["system:serviceaccounts", f"system:serviceaccounts:{namespace}"]
    return []
