"""An admission policy, evaluated as the API server does, for writes of the agent."""

from __future__ import annotations

from typing import Any

from cel_expr_python import cel
from cel_expr_python.ext import ext_optional, ext_strings

AGENT = "system:serviceaccount:gpu-dra:gpu-dra"
NODE_CLAIM = "authentication.kubernetes.io/node-name"


def environment():
    dyn = cel.Type.DYN
    return cel.NewEnv(
        variables={"request": dyn, "object": dyn, "oldObject": dyn, "variables": dyn},
        extensions=[ext_optional.ExtOptional(), ext_strings.ExtStrings()],
    )


def evaluate(expression: str, data: dict[str, Any]) -> Any:
    result = environment().compile(expression).eval(data=data)
    assert result.type() != cel.Type.ERROR, f"{expression}: {result.value()}"
    return plain(result.value())


def plain(value: Any) -> Any:
    """Turn the library's values, which come in its own types within lists, into Python's."""
    if isinstance(value, list):
        return [plain(item) for item in value]
    if hasattr(value, "value") and callable(value.value):
        return plain(value.value())
    if isinstance(value, dict):
        return {key: plain(item) for key, item in value.items()}
    return value


def refusals(
    spec: dict[str, Any], operation: str, *, user: str = AGENT, node: str | None = "node-1", new: Any = None,
    old: Any = None, **request: str,
) -> list[str]:  # fmt: skip
    """The messages of the validations that fail; none where the policy does not concern the user."""
    extra = {} if node is None else {NODE_CLAIM: [node]}
    about = {"operation": operation, "userInfo": {"username": user, "extra": extra}, **request}
    data = {"request": about, "object": new, "oldObject": old, "variables": {}}
    if not all(evaluate(condition["expression"], data) for condition in spec["matchConditions"]):
        return []
    for each in spec["variables"]:
        value = evaluate(each["expression"], data)
        data["variables"] = {**data["variables"], each["name"]: value}
    return [
        evaluate(validation["messageExpression"], data) if "messageExpression" in validation else validation["message"]
        for validation in spec["validations"]
        if evaluate(validation["expression"], data) is not True
    ]
