"""ValidatingAdmissionPolicies: evaluated for every write that comes over HTTP, in the version that the client speaks.

Source: https://kubernetes.io/docs/reference/access-authn-authz/validating-admission-policy/. The cluster's own parts
write to the store directly and are not asked. Parameters (`paramKind`) are refused with their policy, and there is no
audit log for audit annotations.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from driver.localcluster.apiserver.codec import shown
from driver.localcluster.apiserver.errors import StatusError, forbidden
from driver.localcluster.apiserver.objects import Object, lookup, name_of, namespace_of
from driver.localcluster.apiserver.policycel import PolicyCelError, evaluate
from driver.localcluster.apiserver.policymatch import Subject, matched

if TYPE_CHECKING:
    from collections.abc import Iterator

    from driver.localcluster.apiserver.identity import User
    from driver.localcluster.apiserver.registry import Served
    from driver.localcluster.apiserver.store import Store

_CODES: Final = {"Unauthorized": 401, "Forbidden": 403, "RequestEntityTooLarge": 413, "Invalid": 422}


@dataclass(frozen=True, slots=True, kw_only=True)
class Caller:
    """Who writes, through what, to what; `warnings` collects what the answer is to say beside its result."""

    user: User
    served: Served
    subresource: str = ""
    dry_run: bool = False
    warnings: list[str] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class _Failure:
    message: str
    reason: str = "Invalid"


def check(store: Store, caller: Caller, new: Object | None, old: Object | None) -> None:
    """Refuse what a policy denies; `new` is None for a deletion, `old` for a creation.

    :raises StatusError: 403 or 422, or what else the policy wants.
    """
    bindings = store.list("validatingadmissionpolicybindings")
    if not bindings:
        return
    subject = _subject(store, caller, new, old)
    for binding in bindings:
        policy = store.find("validatingadmissionpolicies", str(lookup(binding, "spec.policyName")))
        if policy is not None:
            _bound(policy, binding, caller, subject)


def _subject(store: Store, caller: Caller, new: Object | None, old: Object | None) -> Subject:
    obj = new or old or {}
    return Subject(
        served=caller.served,
        operation="CREATE" if old is None else "DELETE" if new is None else "UPDATE",
        namespace=namespace_of(obj),
        name=name_of(obj),
        subresource=caller.subresource,
        new=new,
        old=old,
        namespace_object=store.find("namespaces", namespace_of(obj)),
    )


def _bound(policy: Object, binding: Object, caller: Caller, subject: Subject) -> None:
    spec = policy["spec"]
    version = matched(spec.get("matchConstraints") or {}, subject)
    if version is None or matched(lookup(binding, "spec.matchResources") or {}, subject) is None:
        return
    failure = next(_failures(spec, caller, subject, version), None)
    if failure is None:
        return
    who = f"ValidatingAdmissionPolicy '{name_of(policy)}' with binding '{name_of(binding)}'"
    actions = lookup(binding, "spec.validationActions") or ()
    if "Warn" in actions:
        caller.warnings.append(f"Validation failed for {who}: {failure.message}")
    if "Deny" in actions:
        raise _denied(subject, f"{who} denied request: {failure.message}", failure.reason)


def _denied(subject: Subject, message: str, reason: str) -> StatusError:
    plain = forbidden(subject.served.resource, subject.name, message)
    details = {**plain.details, "causes": [{"message": message}]}
    return StatusError(_CODES.get(reason, 422), reason, plain.message, details=details)


def _failures(spec: Object, caller: Caller, subject: Subject, version: Served) -> Iterator[_Failure]:
    """Yield what speaks against the write; an expression without a value does unless `failurePolicy` is `Ignore`."""
    ignore = spec.get("failurePolicy") == "Ignore"
    data = _data(caller, subject, version)
    try:
        if not _concerned(spec, data):
            return
    except PolicyCelError as exc:
        if not ignore:
            yield _Failure(str(exc))
        return
    data["variables"] = _variables(spec, data)
    for validation in spec.get("validations") or ():
        try:
            if evaluate(validation["expression"], data) is not True:
                yield _Failure(_message(validation, data), validation.get("reason") or "Invalid")
        except PolicyCelError as exc:
            if not ignore:
                yield _Failure(f"expression '{validation['expression'].strip()}' resulted in error: {exc}")


def _concerned(spec: Object, data: dict[str, Any]) -> bool:
    """Say whether all conditions hold; one that does not outweighs one without a value.

    :raises PolicyCelError: one has no value, and none is false.
    """
    error = None
    for condition in spec.get("matchConditions") or ():
        try:
            if evaluate(condition["expression"], data) is not True:
                return False
        except PolicyCelError as exc:
            error = error or PolicyCelError(f"matchCondition '{condition['name']}' resulted in error: {exc}")
    if error:
        raise error
    return True


def _variables(spec: Object, data: dict[str, Any]) -> dict[str, Any]:
    """Evaluate the variables in order; one without a value is missing, and whatever uses it has none."""
    found: dict[str, Any] = {}
    for variable in spec.get("variables") or ():
        try:
            found[variable["name"]] = evaluate(variable["expression"], {**data, "variables": found})
        except PolicyCelError:
            continue
    return found


def _message(validation: Object, data: dict[str, Any]) -> str:
    expression = validation.get("messageExpression")
    if expression:
        try:
            text = evaluate(expression, data)
        except PolicyCelError:
            text = None
        if isinstance(text, str) and text.strip():
            return text.strip()
    return str(validation.get("message") or f"failed expression: {validation['expression'].strip()}")


def _data(caller: Caller, subject: Subject, version: Served) -> dict[str, Any]:
    kind = {"group": version.group, "version": version.version, "kind": version.resource.kind}
    resource = {"group": version.group, "version": version.version, "resource": version.resource.plural}
    user = caller.user
    extra = {key: list(values) for key, values in user.extra.items()}
    request = {
        "kind": kind,
        "resource": resource,
        "subResource": subject.subresource,
        "name": subject.name,
        "namespace": subject.namespace,
        "operation": subject.operation,
        "userInfo": {"username": user.name, "uid": user.uid, "groups": list(user.groups), "extra": extra},
        "dryRun": caller.dry_run,
    }
    return {
        "request": request,
        "object": None if subject.new is None else shown(version, subject.new),
        "oldObject": None if subject.old is None else shown(version, subject.old),
        "namespaceObject": subject.namespace_object,
        "variables": {},
    }
