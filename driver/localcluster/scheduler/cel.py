"""Selectors: Kubernetes' CEL dialect for devices, on the CEL project's own C++ runtime. Pure.

Source of the dialect: https://kubernetes.io/docs/reference/using-api/cel/ and the API's description of
`CELDeviceSelector.expression`. `device` is declared by its fields, so that an unknown one is a compile error.
"""

from __future__ import annotations

from functools import cache, lru_cache
from typing import TYPE_CHECKING, Any

from cel_expr_python import cel

from driver.errors import PermanentError
from driver.localcluster.scheduler import celsyntax, celvalues

if TYPE_CHECKING:
    from collections.abc import Mapping

_MAPS = ("device.attributes", "device.capacity")
_KINDS = {"str": "string", "float": "double", "dict": "map", "NoneType": "null_type"}  # as CEL names them


class CelError(PermanentError):
    """The expression does not compile; the message is the one that the API server gives."""


class CelRuntimeError(PermanentError):
    """The expression has no value for this device (`no such key: x`, `no such overload`)."""


class Program:
    """A compiled selector. Evaluates without side effects; safe to share."""

    def __init__(self, expression: str, compiled: Any) -> None:
        self.expression = expression
        self._compiled = compiled
        self.syntax = celsyntax.read(compiled.serialize())
        self._domains = {name: celsyntax.indexed_keys(self.syntax.root, name) for name in _MAPS}

    def matches(self, device: Mapping[str, Any]) -> bool:
        """Evaluate for a device, given as `variables` made it.

        :raises CelRuntimeError: if there is no value, or it is no bool.
        """
        value = self.value(device)
        if not isinstance(value, bool):
            kind = _KINDS.get(type(value).__name__, type(value).__name__)
            raise CelRuntimeError(f"CEL result of type {kind} could not be converted to bool")
        return value

    def value(self, device: Mapping[str, Any], part: celsyntax.Node | None = None) -> Any:
        """Evaluate the whole expression, or one part of it.

        :raises CelRuntimeError: if there is no value.
        """
        compiled = self._compiled if part is None else _environment().deserialize(self.syntax.only(part))
        try:
            result = compiled.eval(data=self._with_domains(device))
        except RuntimeError as exc:  # the runtime's budget for loops
            raise CelRuntimeError("operation cancelled: actual cost limit exceeded") from exc
        if result.type() == cel.Type.ERROR:
            raise CelRuntimeError(_runtime_message(str(result.value())))
        return result.value()

    def _with_domains(self, device: Mapping[str, Any]) -> dict[str, Any]:
        """Give every domain that the expression looks into an empty map where the device has none.

        Kubernetes does so, hence the error names the attribute, not its domain, and `has()` works.
        """
        data = dict(device)
        for name, domains in self._domains.items():
            if missing := [domain for domain in domains if domain not in data[name]]:
                data[name] = {**data[name], **{domain: {} for domain in missing}}
        return data


@lru_cache(maxsize=1024)
def compile(expression: str) -> Program:
    """Compile a selector.

    :raises CelError: if it does not parse or check, or gives no bool.
    """
    try:
        compiled = _environment().compile(expression)
    except RuntimeError as exc:
        raise CelError(f"compilation failed: {compile_message(str(exc))}") from exc
    kind = compiled.return_type()
    if kind not in (cel.Type.BOOL, cel.Type.DYN):
        raise CelError(f"must evaluate to bool or the unknown type, not {kind.name().lower()}")
    program = Program(expression, compiled)
    _check_patterns(program)
    return program


def check(expression: str) -> str | None:
    """Return what is wrong with a selector, None if it compiles: the API server's admission asks this."""
    try:
        compile(expression)
    except CelError as exc:
        return str(exc)
    return None


def variables(
    driver: str,
    attributes: Mapping[str, Mapping[str, Any]],
    capacity: Mapping[str, Mapping[str, Any]],
    *,
    multiple: bool = False,
) -> dict[str, Any]:
    """Return what a program is evaluated with: attributes and capacity by domain, then by name."""
    return {
        "device.driver": driver,
        "device.attributes": {domain: dict(values) for domain, values in attributes.items()},
        "device.capacity": {domain: dict(values) for domain, values in capacity.items()},
        "device.allowMultipleAllocations": multiple,
    }


@cache
def _environment() -> Any:
    t = cel.Type
    return celvalues.environment(
        {
            "device.driver": t.STRING,
            "device.attributes": t.Map(t.STRING, t.Map(t.STRING, t.DYN)),
            "device.capacity": t.Map(t.STRING, t.Map(t.STRING, celvalues.QUANTITY)),
            "device.allowMultipleAllocations": t.BOOL,
        }
    )


def _check_patterns(program: Program) -> None:
    """Refuse a literal that is no RE2 pattern at once, as the API server does."""
    for pattern in celsyntax.literal_patterns(program.syntax.root):
        probe = _environment().compile("''.matches(device.driver)")
        result = probe.eval(data={**variables("", {}, {}), "device.driver": pattern})
        if result.type() == cel.Type.ERROR:
            raise CelError(f"compilation failed: ERROR: invalid matches argument {pattern!r}: {result.value()}")


def compile_message(raw: str) -> str:
    """Turn the runtime's message into the API server's (`recordings/allocation.json`: syntax-error)."""
    text = raw.removeprefix("INVALID_ARGUMENT: ").removesuffix(" [INVALID_ARGUMENT]").replace(r"\u003F", "?")
    return text.partition("\nERROR: <input>:-1:-1:")[0]


def _runtime_message(raw: str) -> str:
    text = raw.partition(": ")[2] or raw
    if text.startswith("Key not found in map : "):
        return f"no such key: {text.partition(' : ')[2].strip(chr(34))}"
    return "no such overload" if text.startswith("No matching overloads") else text
