"""Says why a selector is false for a device: the comparisons that failed, with both values and the difference. Pure."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from driver._pb import cel_values_pb2 as pb
from driver.localcluster.scheduler import cel, celsyntax, celvalues

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from driver.localcluster.scheduler.celsyntax import Node

_OPPOSITE = {"_<_": "_>=_", "_<=_": "_>_", "_>_": "_<=_", "_>=_": "_<_", "_==_": "_!=_", "_!=_": "_==_"}
_ORDERED = {"isGreaterThan": "_>_", "isLessThan": "_<_"}
_TEXT = {"matches": "match", "contains": "contain", "startsWith": "start with", "endsWith": "end with"}


def why_false(expression: str, device: Mapping[str, Any]) -> str:
    """Explain a selector that is false for a device, given as its CEL variables."""
    program = cel.compile(expression)
    return _Explainer(program, device).explain(program.syntax.root)


class _Explainer:
    """Explains parts of one program for one device."""

    def __init__(self, program: cel.Program, device: Mapping[str, Any]) -> None:
        self._program, self._device = program, device

    def explain(self, node: Node) -> str:
        """Explain a part that is false."""
        found = celsyntax.call(node)
        if found is None:
            return self._plain(node)
        function, arguments = found
        if function == "_&&_":
            return " and ".join(self.explain(argument) for argument in arguments if self._value(argument) is False)
        if function == "_||_":
            return ", and ".join(self.explain(argument) for argument in arguments)
        leaf = self._leaf(function, arguments)
        return leaf or self._plain(node)

    def _leaf(self, function: str, arguments: list[Node]) -> str | None:
        if function in _OPPOSITE:
            return self._compared_to(function, arguments) or self._comparison(function, *arguments)
        if function in _ORDERED:
            return self._comparison(_ORDERED[function], *arguments)
        if function in _TEXT:
            return self._text(function, *arguments)
        if function == "@in":
            return self._membership(*arguments)
        return None

    def _compared_to(self, function: str, arguments: list[Node]) -> str | None:
        """Explain `a.compareTo(b) >= 0` as `a >= b`."""
        inner = celsyntax.call(arguments[0])
        if inner is None or inner[0] != "compareTo" or celsyntax.text(arguments[1]) != "0":
            return None
        return self._comparison(function, *inner[1])

    def _comparison(self, function: str, left: Node, right: Node) -> str | None:
        a, b = self._value(left), self._value(right)
        if a is None or b is None:
            return None
        if _is_literal(left) and not _is_literal(right):
            mirrored = function.translate(str.maketrans("<>", "><"))
            return self._comparison(mirrored, right, left)
        subject = _subject(left, a)
        if function == "_==_":
            return f"{subject}, not {show(b)}{_difference(a, b)}"
        if function == "_!=_":
            return f"{subject}, which is excluded"
        return f"{celsyntax.text(left)} {show(a)} {_relation(function, a, b)}"

    def _text(self, function: str, subject: Node, wanted: Node) -> str | None:
        a, b = self._value(subject), self._value(wanted)
        if not isinstance(a, str) or not isinstance(b, str):
            return None
        hint = " (it does in another case: see lowerAscii())" if self._case_only(function, a, b) else ""
        return f"{celsyntax.text(subject)} {show(a)} does not {_TEXT[function]} {show(b)}{hint}"

    def _case_only(self, function: str, text: str, wanted: str) -> bool:
        low, other = text.lower(), wanted.lower()
        tests: dict[str, Callable[[], bool]] = {
            "startsWith": lambda: low.startswith(other),
            "endsWith": lambda: low.endswith(other),
        }
        return tests.get(function, lambda: other in low)()

    def _membership(self, item: Node, holder: Node) -> str | None:
        value, items = self._value(item), self._value(holder)
        if isinstance(items, dict):
            return f"{celsyntax.text(holder)} has no {show(value)}"
        return None if value is None else f"{_subject(item, value)}, not one of {celsyntax.text(holder)}"

    def _plain(self, node: Node) -> str:
        return f"{celsyntax.text(node)} is false"

    def _value(self, node: Node) -> Any:
        """Evaluate a part; None if it has no value of its own (a loop's variable, an error)."""
        try:
            value = self._program.value(self._device, node)
        except (cel.CelRuntimeError, RuntimeError):
            return None
        return value


def show(value: Any) -> str:
    """Write a CEL value: quantities in their shortest spelling, strings quoted."""
    if isinstance(value, pb.Quantity):
        return celvalues.show(celvalues.fraction(value))
    if isinstance(value, pb.Semver):
        return value.exact
    return json.dumps(value) if isinstance(value, (str, bool)) else str(value)


def _subject(node: Node, value: Any) -> str:
    return f"{celsyntax.text(node)} is {show(value)}"


def _is_literal(node: Node) -> bool:
    found = celsyntax.call(node)
    return node.WhichOneof("kind") == "const_expr" or (found is not None and found[0] in ("quantity", "semver"))


def _relation(function: str, a: Any, b: Any) -> str:
    """Say how `a` fails `a <function> b`: `is below 80Gi by 361Mi`."""
    wanted = show(b)
    if function in ("_>=_", "_>_"):
        return f"is not above {wanted}" if a == b else f"is below {wanted}{_by(a, b)}"
    return f"is not below {wanted}" if a == b else f"is above {wanted}{_by(a, b)}"


def _by(a: Any, b: Any) -> str:
    if isinstance(a, pb.Quantity) and isinstance(b, pb.Quantity):
        return f" by {celvalues.show(abs(celvalues.fraction(a) - celvalues.fraction(b)))}"
    return f" by {abs(a - b)}" if isinstance(a, int) and isinstance(b, int) else ""


def _difference(a: Any, b: Any) -> str:
    if not isinstance(a, pb.Quantity) or not isinstance(b, pb.Quantity):
        return ""
    word = "below" if celvalues.fraction(a) < celvalues.fraction(b) else "above"
    return f" ({word} it{_by(a, b)})"
