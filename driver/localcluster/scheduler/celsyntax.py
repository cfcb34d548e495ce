"""The syntax tree of a checked CEL expression: find its parts, write one as text, take one out to evaluate it. Pure."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING

from google.protobuf.any_pb2 import Any as Packed

from driver._pb import cel_syntax_pb2 as pb

if TYPE_CHECKING:
    from collections.abc import Iterator

Node = pb.Expr

_BINARY = {f"_{sign}_": sign for sign in ("==", "!=", "<", "<=", ">", ">=", "+", "-", "*", "/", "%", "&&", "||")}
_BINARY["@in"] = "in"
_MACROS = {("_||_", "false"): "exists", ("_&&_", "true"): "all"}


@dataclass(frozen=True, slots=True)
class Syntax:
    """A whole expression; parts of it keep the references and types that the checker found."""

    root: Node
    _type_url: str
    _checked: bytes

    def only(self, part: Node) -> bytes:
        """Return `part` as an expression of its own, serialized."""
        checked = pb.CheckedExpr.FromString(self._checked)
        checked.expr.CopyFrom(part)
        return Packed(type_url=self._type_url, value=checked.SerializeToString()).SerializeToString()


def read(serialized: bytes) -> Syntax:
    """Decode what the CEL runtime serialized."""
    packed = Packed.FromString(serialized)
    return Syntax(pb.CheckedExpr.FromString(packed.value).expr, packed.type_url, packed.value)


def call(node: Node) -> tuple[str, list[Node]] | None:
    """Return the function and the arguments of a call, its target first; None for other nodes."""
    if node.WhichOneof("kind") != "call_expr":
        return None
    target = [node.call_expr.target] if node.call_expr.HasField("target") else []
    return node.call_expr.function, [*target, *node.call_expr.args]


def walk(node: Node) -> Iterator[Node]:
    """Yield a node and everything below it."""
    yield node
    for child in _children(node):
        yield from walk(child)


def literal(node: Node) -> str | None:
    """Return a string literal's value; None for other nodes."""
    if node.WhichOneof("kind") == "const_expr" and node.const_expr.WhichOneof("kind") == "string_value":
        return node.const_expr.string_value
    return None


def indexed_keys(root: Node, variable: str) -> frozenset[str]:
    """Return the literal keys by which the expression indexes a map, without those whose presence it tests."""
    indexed = {key for key, of in _lookups(root, "_[_]") if of == variable}
    tested = {key for key, of in _lookups(root, "@in") if of == variable}
    return frozenset(indexed - tested)


def literal_patterns(root: Node) -> list[str]:
    """Return the literal patterns given to `matches`."""
    calls = (found for node in walk(root) if (found := call(node)) and found[0] == "matches")
    return [pattern for _, arguments in calls if (pattern := literal(arguments[-1])) is not None]


def text(node: Node) -> str:
    """Write a node as a person would, with the domain of an attribute left out: `memory`, `driverVersion`."""
    kind = node.WhichOneof("kind")
    if kind == "const_expr":
        return _constant(node.const_expr)
    if kind == "ident_expr":
        return node.ident_expr.name
    if kind == "select_expr":
        return _select(node)
    if kind == "list_expr":
        return f"[{', '.join(text(element) for element in node.list_expr.elements)}]"
    if kind == "comprehension_expr":
        return _loop_text(node.comprehension_expr)
    return _call_text(node) if kind == "call_expr" else "the expression"


def _select(node: Node) -> str:
    select = node.select_expr
    if select.test_only:
        return f"has({text(select.operand)}.{select.field})"
    return f"{_operand(select.operand)}{select.field}"


def _operand(node: Node) -> str:
    """Write what a field is selected from, or nothing if it is a domain of the device's maps."""
    found = call(node)
    if found and found[0] == "_[_]" and text(found[1][0]) in ("device.attributes", "device.capacity"):
        return ""
    return f"{text(node)}."


def _call_text(node: Node) -> str:
    found = call(node)
    if found is None:
        return "the expression"
    function, arguments = found
    shown = [text(argument) for argument in arguments]
    if function in _BINARY and len(shown) == 2:
        return f"{shown[0]} {_BINARY[function]} {shown[1]}"
    if function == "_[_]":
        return _index(arguments, shown)
    if function == "_[?_]":
        return f"{shown[0]}[?{shown[1]}]"
    if function == "_?_:_":
        return f"{shown[0]} ? {shown[1]} : {shown[2]}"
    if function in ("!_", "-_"):
        return f"{function[0]}({shown[0]})"
    if node.call_expr.HasField("target"):
        return f"{shown[0]}.{function}({', '.join(shown[1:])})"
    return f"{function}({', '.join(shown)})"


def _loop_text(loop: pb.Expr.Comprehension) -> str:
    """Write what `exists`, `all` and `cel.bind` have become as they were written; other loops are rare."""
    step = call(loop.loop_step)
    start = text(loop.accu_init)
    if step is not None and (step[0], start) in _MACROS:
        macro, condition = _MACROS[step[0], start], text(step[1][-1])
        return f"{text(loop.iter_range)}.{macro}({loop.iter_var}, {condition})"
    if not loop.iter_range.list_expr.elements and loop.iter_range.HasField("list_expr"):
        return f"cel.bind({loop.accu_var}, {start}, {text(loop.result)})"
    return "the expression"


def _index(arguments: list[Node], shown: list[str]) -> str:
    key = literal(arguments[1])
    inner = call(arguments[0])
    if key is not None and inner and inner[0] == "_[_]" and shown[0].startswith("device."):
        return key  # device.attributes["domain"]["name"]
    return f"{shown[0]}[{shown[1]}]"


def _constant(constant: pb.Constant) -> str:
    kind = constant.WhichOneof("kind")
    value = getattr(constant, kind) if kind else None
    return (
        "null" if kind == "null_value" else value.decode("latin-1") if isinstance(value, bytes) else json.dumps(value)
    )


def _lookups(root: Node, function: str) -> Iterator[tuple[str, str]]:
    """Yield key and variable of every `variable[key]` or `key in variable` with a literal key."""
    for node in walk(root):
        found = call(node)
        if found is None or found[0] != function:
            continue
        holder, key = found[1] if function == "_[_]" else reversed(found[1])
        if (value := literal(key)) is not None:
            yield value, holder.ident_expr.name


def _children(node: Node) -> list[Node]:
    kind = node.WhichOneof("kind")
    if kind == "call_expr":
        return (call(node) or ("", []))[1]
    if kind == "select_expr":
        return [node.select_expr.operand]
    if kind == "list_expr":
        return list(node.list_expr.elements)
    if kind == "comprehension_expr":
        loop = node.comprehension_expr
        return [loop.iter_range, loop.accu_init, loop.loop_condition, loop.loop_step, loop.result]
    return []
