"""Kubernetes' CEL types `Quantity` and `Semver`, and their functions. Pure.

Source: https://kubernetes.io/docs/reference/using-api/cel/ (quantity and semver libraries). Both types are messages
that hold the exact value, so that CEL's own `==` and `in` compare them by value (`1Gi` and `1024Mi` are equal).
"""

from __future__ import annotations

from fractions import Fraction
from typing import TYPE_CHECKING, Any

from cel_expr_python import cel
from cel_expr_python.ext import ext_bindings, ext_math, ext_optional, ext_strings

from driver._pb import cel_values_pb2 as pb
from driver.errors import InvalidValueError
from driver.localcluster.scheduler import semver
from driver.model import quantity

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

T = cel.Type
QUANTITY = T("kubernetes.Quantity")
SEMVER = T("kubernetes.Semver")
_INT64 = range(-(1 << 63), 1 << 63)


def make_quantity(text: str) -> pb.Quantity:
    """Return a CEL quantity.

    :raises InvalidValueError: if `text` is none.
    """
    return quantity_of(quantity.parse(text))


def quantity_of(value: Fraction) -> pb.Quantity:
    """Return a CEL quantity of an exact value."""
    return pb.Quantity(exact=str(value))


def make_semver(text: str) -> pb.Semver:
    """Return a CEL version.

    :raises ValueError: if `text` is none.
    """
    return pb.Semver(exact=str(semver.parse(text)))


def fraction(value: pb.Quantity) -> Fraction:
    """Return the exact value of a CEL quantity."""
    return Fraction(value.exact)


def compare(left: Any, right: Any) -> int:
    """Return -1, 0 or 1 for two quantities or two versions.

    :raises TypeError: for one of each, as CEL has no such overload.
    """
    if isinstance(left, pb.Quantity) and isinstance(right, pb.Quantity):
        return _order(fraction(left), fraction(right))
    if isinstance(left, pb.Semver) and isinstance(right, pb.Semver):
        return semver.compare(semver.parse(left.exact), semver.parse(right.exact))
    raise TypeError("no such overload")


def show(value: Fraction) -> str:
    """Write a quantity in its shortest spelling: `81559Mi`, `80G`, `1500m`."""
    if value.denominator != 1:
        return f"{float(value * 1000):g}m"
    whole = int(value)
    sign, whole = ("-", -whole) if whole < 0 else ("", whole)
    return sign + min((quantity.binary_si(whole), _decimal_si(whole)), key=len)


def environment(variables: Mapping[str, Any]) -> Any:
    """Return a CEL environment with variables of the given types, and the functions that Kubernetes has."""
    libraries = (ext_strings.ExtStrings, ext_optional.ExtOptional, ext_bindings.ExtBindings, ext_math.ExtMath)
    extensions = [library() for library in libraries]
    return cel.NewEnv(variables=dict(variables), extensions=extensions, functions=_functions())


def _functions() -> list[Any]:
    declared = [
        _function("quantity", _overload([T.STRING], QUANTITY, make_quantity)),
        _function("isQuantity", _overload([T.STRING], T.BOOL, _parses(quantity.parse))),
        _function(
            "semver",
            _overload([T.STRING], SEMVER, make_semver),
            _overload([T.STRING, T.BOOL], SEMVER, lambda text, loose: make_semver(_maybe_normal(text, loose))),
        ),
        _function(
            "isSemver",
            _overload([T.STRING], T.BOOL, _parses(semver.parse)),
            _overload(
                [T.STRING, T.BOOL], T.BOOL, lambda text, loose: _parses(semver.parse)(_maybe_normal(text, loose))
            ),
        ),
    ]
    return [*declared, *_comparisons(), *_arithmetic(), *_parts()]


def _comparisons() -> list[Any]:
    """Declare for both types; the runtime dispatches on the kind `message` alone, so one implementation serves both."""
    tests: dict[str, tuple[Any, Callable[[int], Any]]] = {
        "compareTo": (T.INT, lambda order: order),
        "isGreaterThan": (T.BOOL, lambda order: order > 0),
        "isLessThan": (T.BOOL, lambda order: order < 0),
    }
    return [
        _function(
            name,
            _member([QUANTITY, QUANTITY], returns, lambda left, right, of=of: of(compare(left, right))),
            _member([SEMVER, SEMVER], returns, None),
        )
        for name, (returns, of) in tests.items()
    ]


def _arithmetic() -> list[Any]:
    def combined(sign: int) -> Callable[[pb.Quantity, Any], pb.Quantity]:
        def combine(left: pb.Quantity, right: Any) -> pb.Quantity:
            other = Fraction(right) if isinstance(right, int) else fraction(right)
            return pb.Quantity(exact=str(fraction(left) + sign * other))

        return combine

    return [
        _function(name, *(_member([QUANTITY, other], QUANTITY, combined(sign)) for other in (QUANTITY, T.INT)))
        for name, sign in (("add", 1), ("sub", -1))
    ]


def _parts() -> list[Any]:
    return [
        _function("asInteger", _member([QUANTITY], T.INT, _as_integer)),
        _function("isInteger", _member([QUANTITY], T.BOOL, _is_integer)),
        _function("asApproximateFloat", _member([QUANTITY], T.DOUBLE, lambda value: float(fraction(value)))),
        _function("sign", _member([QUANTITY], T.INT, lambda value: _order(fraction(value), Fraction(0)))),
        _function("major", _member([SEMVER], T.INT, lambda value: semver.parse(value.exact).major)),
        _function("minor", _member([SEMVER], T.INT, lambda value: semver.parse(value.exact).minor)),
        _function("patch", _member([SEMVER], T.INT, lambda value: semver.parse(value.exact).patch)),
    ]


def _function(name: str, *overloads: Callable[[str], Any]) -> Any:
    return cel.FunctionDecl(name, [overload(f"{name}_{index}") for index, overload in enumerate(overloads)])


def _overload(parameters: list[Any], returns: Any, impl: Callable[..., Any]) -> Callable[[str], Any]:
    return lambda name: cel.Overload(name, returns, parameters, impl=impl)


def _member(parameters: list[Any], returns: Any, impl: Callable[..., Any] | None) -> Callable[[str], Any]:
    def declared(name: str) -> Any:
        kind = "quantity" if parameters[0] == QUANTITY else "semver"
        return cel.Overload(f"{kind}_{name}", returns, parameters, is_member=True, impl=impl)

    return declared


def _parses(parse: Callable[[str], object]) -> Callable[[str], bool]:
    def test(text: str) -> bool:
        try:
            parse(text)
        except (ValueError, InvalidValueError):
            return False
        return True

    return test


def _maybe_normal(text: str, loose: bool) -> str:
    return semver.normalize(text) if loose else text


def _order(left: Fraction, right: Fraction) -> int:
    return (left > right) - (left < right)


def _is_integer(value: pb.Quantity) -> bool:
    exact = fraction(value)
    return exact.denominator == 1 and exact.numerator in _INT64


def _as_integer(value: pb.Quantity) -> int:
    if not _is_integer(value):
        raise ValueError("cannot convert value to integer")
    return int(fraction(value))


def _decimal_si(whole: int) -> str:
    for suffix, power in (("E", 18), ("P", 15), ("T", 12), ("G", 9), ("M", 6), ("k", 3)):
        if whole and whole % 10**power == 0:
            return f"{whole // 10**power}{suffix}"
    return str(whole)
