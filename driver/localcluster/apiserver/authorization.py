"""RBAC from the stored roles and bindings."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from driver.localcluster.apiserver.errors import StatusError
from driver.localcluster.apiserver.identity import MASTERS

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from driver.localcluster.apiserver.audit import Call
    from driver.localcluster.apiserver.identity import User
    from driver.localcluster.apiserver.objects import Object
    from driver.localcluster.apiserver.store import Store

_EVERYBODY = ("/api", "/apis", "/healthz", "/livez", "/openapi", "/readyz", "/version")
_SELF_REVIEWS = ("selfsubjectaccessreviews", "selfsubjectrulesreviews", "selfsubjectreviews")


class Authorizer:
    """Allows what a rule allows; with `enforce` off it allows everything."""

    def __init__(self, store: Store, *, enforce: bool) -> None:
        self._store = store
        self.enforce = enforce

    def check(self, user: User, call: Call) -> None:
        """Let an allowed call pass.

        :raises StatusError: 403 for any other.
        """
        if self.enforce and not self.allows(user, call):
            raise _refused(user, call)

    def allows(self, user: User, call: Call) -> bool:
        """Say whether a rule allows the call."""
        if MASTERS in user.groups or call.resource in _SELF_REVIEWS:
            return True
        if not call.resource:
            return call.path.startswith(_EVERYBODY)
        return any(_rule_allows(rule, call) for rule in self.rules(user, call.namespace))

    def rules(self, user: User, namespace: str) -> Iterator[Mapping[str, Any]]:
        """Yield the rules that hold for a user, for the whole cluster and in a namespace."""
        for binding in self._store.list("clusterrolebindings"):
            if _binds(binding, user, ""):
                yield from self._role(binding["roleRef"], "")
        for binding in self._store.list("rolebindings", namespace) if namespace else ():
            if _binds(binding, user, namespace):
                yield from self._role(binding["roleRef"], namespace)

    def _role(self, ref: Mapping[str, Any], namespace: str) -> Iterator[Mapping[str, Any]]:
        if ref.get("kind") == "ClusterRole":
            role = self._store.find("clusterroles", str(ref.get("name")))
        else:
            role = self._store.find("roles", str(ref.get("name")), namespace)
        yield from (role or {}).get("rules") or ()


def _binds(binding: Object, user: User, namespace: str) -> bool:
    return any(_is_subject(subject, user, namespace) for subject in binding.get("subjects") or ())


def _is_subject(subject: Mapping[str, Any], user: User, namespace: str) -> bool:
    kind, name = subject.get("kind"), subject.get("name")
    if kind == "ServiceAccount":
        return user.name == f"system:serviceaccount:{subject.get('namespace') or namespace}:{name}"
    return name == user.name if kind == "User" else name in user.groups


def _rule_allows(rule: Mapping[str, Any], call: Call) -> bool:
    resources = rule.get("resources") or ()
    names = rule.get("resourceNames")
    return (
        _has(rule.get("verbs"), call.verb)
        and _has(rule.get("apiGroups"), call.group)
        and (_has(resources, call.full_resource) or (bool(call.subresource) and f"*/{call.subresource}" in resources))
        and (not names or call.name in names)
    )


def _has(values: Any, wanted: str) -> bool:
    return wanted in (values or ()) or "*" in (values or ())


def _refused(user: User, call: Call) -> StatusError:
    what = call.full_resource
    qualified = f"{what}.{call.group}" if call.group else what
    about = f' "{call.name}"' if call.name else ""
    if not call.resource:
        text = f'forbidden: User "{user.name}" cannot {call.verb} path "{call.path}"'
    else:
        where = f' in the namespace "{call.namespace}"' if call.namespace else " at the cluster scope"
        text = (
            f'{qualified}{about} is forbidden: User "{user.name}" cannot {call.verb} resource "{what}" '
            f'in API group "{call.group}"{where}'
        )
    details = {"name": call.name, "group": call.group, "kind": call.resource}
    return StatusError(403, "Forbidden", text, details={k: v for k, v in details.items() if v})
