"""Says why a selector is false for a device: the comparisons that failed, with both values and the difference. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from driver.localcluster.scheduler import cel, celsyntax
from driver.localcluster.scheduler.wording import difference, relation, show

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from driver.localcluster.scheduler.celsyntax import Node

_OPPOSITE = {"_<_": "_>=_", "_<=_": "_>_", "_>_": "_<=_", "_>=_": "_<_", "_==_": "_!=_", "_!=_": "_==_"}
_ORDERED = {"isGreaterThan": "_>_", "isLessThan": "_<_"}
_TEXT = {"matches": "match", "contains": "contain", "startsWith": "start with", "endsWith": "end with"}
_TRUE_TEXT = {"matches": "matches", "contains": "contains", "startsWith": "starts with", "endsWith": "ends with"}


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
            return _absent(node) or f"{celsyntax.text(node)} is false"
        function, arguments = found
        if function == "_&&_":
            return " and ".join(self.explain(argument) for argument in arguments if self._value(argument) is False)
        if function == "_||_":
            return ", and ".join(self.explain(argument) for argument in arguments)
        if function == "_?_:_":
            return self._choice(*arguments)
        if function == "!_":
            return self._excluded(arguments[0])
        return self._leaf(function, arguments) or f"{celsyntax.text(node)} is false"

    def _choice(self, condition: Node, then: Node, otherwise: Node) -> str:
        """Explain the branch that was taken; `a ? b : false` is `a && b` to most who write it."""
        if self._value(condition) is True:
            return self.explain(then)
        return self.explain(condition if celsyntax.text(otherwise) == "false" else otherwise)

    def _excluded(self, node: Node) -> str:
        """Explain a part that is true where its negation is wanted."""
        found = celsyntax.call(node)
        function, arguments = found or ("", [])
        if function == "!_":
            return self.explain(arguments[0])
        if function in ("_&&_", "_||_"):
            return " and ".join(self._excluded(argument) for argument in arguments if self._value(argument) is True)
        if function in _OPPOSITE:
            leaf = self._leaf(_OPPOSITE[function], arguments)
        elif function in _ORDERED:
            leaf = self._comparison(_OPPOSITE[_ORDERED[function]], *arguments)
        else:
            leaf = self._true_text(function, arguments)
        return leaf or f"{celsyntax.text(node)} is true, which is excluded"

    def _true_text(self, function: str, arguments: list[Node]) -> str | None:
        value = self._value(arguments[0]) if function in _TEXT or function == "@in" else None
        if not isinstance(value, str):
            return None
        verb = "is one of" if function == "@in" else _TRUE_TEXT[function]
        subject, other = (celsyntax.text(argument) for argument in arguments)
        if isinstance(self._value(arguments[1]), dict):
            return f"{other} has {subject}, which is excluded"
        return f"{subject} {show(value)} {verb} {other}, which is excluded"

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
            return f"{subject}, not {show(b)}{difference(a, b)}"
        if function == "_!=_":
            return f"{subject}, which is excluded"
        return f"{celsyntax.text(left)} {show(a)} {relation(function, a, b)}"

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

    def _value(self, node: Node) -> Any:
        """Evaluate a part; None if it has no value of its own (a loop's variable, an error)."""
        try:
            value = self._program.value(self._device, node)
        except (cel.CelRuntimeError, RuntimeError):
            return None
        return value


def _subject(node: Node, value: Any) -> str:
    return f"{celsyntax.text(node)} is {show(value)}"


def _absent(node: Node) -> str | None:
    """Explain a `has()` that is false."""
    if node.WhichOneof("kind") != "select_expr" or not node.select_expr.test_only:
        return None
    return f"{celsyntax.text(node.select_expr.operand)} has no {node.select_expr.field}"


def _is_literal(node: Node) -> bool:
    found = celsyntax.call(node)
    return node.WhichOneof("kind") == "const_expr" or (found is not None and found[0] in ("quantity", "semver"))
