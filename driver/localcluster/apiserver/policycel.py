"""CEL as admission policies use it: `object`, `oldObject`, `request`, `variables` and `namespaceObject`, all dynamic.

The library is the one of the scheduler, and an extra of the package: it is imported with the first expression.
"""

from __future__ import annotations

from functools import cache, lru_cache
from typing import TYPE_CHECKING, Any, Final

from driver.errors import PermanentError

if TYPE_CHECKING:
    from collections.abc import Mapping

_VARIABLES: Final = ("object", "oldObject", "request", "variables", "namespaceObject")


class PolicyCelError(PermanentError):
    """An expression does not compile, or has no value."""


def evaluate(expression: str, data: Mapping[str, Any]) -> Any:
    """Return an expression's value.

    :raises PolicyCelError: it does not compile, or has no value.
    """
    from cel_expr_python import cel

    try:
        result = _compiled(expression).eval(data={name: data.get(name) for name in _VARIABLES})
    except RuntimeError as exc:
        raise PolicyCelError(str(exc)) from exc
    if result.type() == cel.Type.ERROR:
        raise PolicyCelError(str(result.value()))
    return _plain(result.value())


def fault(expression: str, kind: str = "") -> str:
    """Return what is wrong with an expression that is to give a `bool` or a `string`; nothing if it may do so."""
    from driver.localcluster.scheduler.cel import compile_message

    try:
        found = _compiled(expression).return_type().name().lower()
    except RuntimeError as exc:
        return f"compilation failed: {compile_message(str(exc))}"
    return f"must evaluate to {kind}" if kind and found not in (kind, "dyn") else ""


@lru_cache(maxsize=512)
def _compiled(expression: str) -> Any:
    return _environment().compile(expression)


@cache
def _environment() -> Any:
    from cel_expr_python import cel

    from driver.localcluster.scheduler import celvalues

    return celvalues.environment(dict.fromkeys(_VARIABLES, cel.Type.DYN))


def _plain(value: Any) -> Any:
    """Turn the library's values, which come in its own types within lists and maps, into Python's."""
    if isinstance(value, list):
        return [_plain(item) for item in value]
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    inner = getattr(value, "value", None)
    return _plain(inner()) if callable(inner) else value
