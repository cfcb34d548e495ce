"""ValidatingAdmissionPolicies and their bindings, as far as they are evaluated here. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from driver.localcluster.apiserver import policycel
from driver.localcluster.apiserver.validation.common import forbidden, invalid, required, unsupported

if TYPE_CHECKING:
    from collections.abc import Iterator

    from driver.localcluster.apiserver.errors import Cause
    from driver.localcluster.apiserver.objects import Object
    from driver.localcluster.apiserver.strategy import Rules

_ACTIONS: Final = ("Audit", "Deny", "Warn")
_FAILURES: Final = ("Fail", "Ignore")
_NO_PARAMETERS: Final = "the embedded cluster has no policies with parameters: write their values into the expressions"


def policy_errors(obj: Object, old: Object | None, rules: Rules) -> list[Cause]:
    """Return everything that is wrong with a policy."""
    spec = obj.get("spec") or {}
    found = list(_shape(spec))
    for at, variable in enumerate(spec.get("variables") or ()):
        found += _expression(f"spec.variables[{at}].expression", variable.get("expression"))
    for at, condition in enumerate(spec.get("matchConditions") or ()):
        found += _expression(f"spec.matchConditions[{at}].expression", condition.get("expression"), "bool")
    for at, validation in enumerate(spec.get("validations") or ()):
        where = f"spec.validations[{at}]"
        found += _expression(f"{where}.expression", validation.get("expression"), "bool")
        if validation.get("messageExpression"):
            found += _expression(f"{where}.messageExpression", validation["messageExpression"], "string")
    return found


def _shape(spec: Object) -> Iterator[Cause]:
    if spec.get("paramKind"):
        yield forbidden("spec.paramKind", _NO_PARAMETERS)
    if not (spec.get("matchConstraints") or {}).get("resourceRules"):
        yield required("spec.matchConstraints.resourceRules")
    if not spec.get("validations") and not spec.get("auditAnnotations"):
        yield required("spec.validations", "validations or auditAnnotations must contain at least one item")
    policy = spec.get("failurePolicy", "Fail")
    if policy not in _FAILURES:
        yield unsupported("spec.failurePolicy", policy, _FAILURES)


def _expression(where: str, expression: str | None, kind: str = "") -> list[Cause]:
    if not (expression or "").strip():
        return [required(where, "expression is not specified")]
    why = policycel.fault(str(expression), kind)
    return [invalid(where, expression, why)] if why else []


def binding_errors(obj: Object, old: Object | None, rules: Rules) -> list[Cause]:
    """Return everything that is wrong with a binding."""
    spec = obj.get("spec") or {}
    actions = spec.get("validationActions") or []
    found = [] if spec.get("policyName") else [required("spec.policyName")]
    if spec.get("paramRef"):
        found.append(forbidden("spec.paramRef", _NO_PARAMETERS))
    if not actions:
        found.append(required("spec.validationActions", "at least one validation action is required"))
    for at, action in enumerate(actions):
        if action not in _ACTIONS:
            found.append(unsupported(f"spec.validationActions[{at}]", action, _ACTIONS))
    if {"Deny", "Warn"} <= set(actions):
        text = (
            "must not contain both Deny and Warn (repeating the same validation failure information in both is noise)"
        )
        found.append(invalid("spec.validationActions", actions, text))
    return found
