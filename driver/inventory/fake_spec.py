"""What fake GPUs a node has: `h100:8,l4:2`, or a YAML file that says the same and more. Pure but for `load_node`.

A specification is a list of groups `PRODUCT[:COUNT][@OPTION…]`, separated by commas. Options:

- `@pairs`, `@nvswitch`, `@none`: how the NVLinks end, if not as the product's usually do;
- `@mig` or `@mig=PLAN`: MIG mode on, with these MIG devices on each GPU of the group. A plan is `PROFILE[:START][*N]`
  joined by `+` (`1g.10gb*3+3g.40gb:4`); without a start the device goes to the first placement that lets all fit.

The file has `gpus:`, a list of `{product, count, nvlink, mig}`, and may set `driver_version` and `cuda_version`.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from driver.errors import InvalidValueError
from driver.inventory.profiles import Product, Wiring, find_product
from driver.model.decode import Fields, suggestion, text
from driver.model.snapshot import DriverVersions
from driver.yaml_file import load_yaml, read_text

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from driver.inventory.profiles import MigSupport
    from driver.model.mig import MigProfile, Placement

    _Choice = tuple[MigProfile, tuple[Placement, ...]]

MAX_GPUS = 1024
GRAMMAR = "PRODUCT[:COUNT][@pairs|@nvswitch|@none][@mig[=PROFILE[:START][*N]+…]], separated by commas"

_WIRINGS = {"nvswitch": Wiring.NVSWITCH, "pairs": Wiring.BRIDGE, "none": Wiring.NONE}
_GROUP = re.compile(r"(?P<product>[^:@\s]+)(?::(?P<count>[^:@]*))?(?P<options>(?:@[^@]*)*)")
_MIG_ITEM = re.compile(r"(?P<profile>[^:*]+)(?::(?P<start>\d{1,2}))?(?:\*(?P<times>\d{1,2}))?", re.ASCII)


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """GPUs of one kind. `mig` is None where MIG mode is off; each entry is one MIG device at its placement."""

    product: Product
    count: int = 1
    wiring: Wiring = Wiring.NONE
    mig: tuple[tuple[MigProfile, Placement], ...] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeSpec:
    """The fake GPUs of a node, in order."""

    groups: tuple[Group, ...]
    versions: DriverVersions = field(default_factory=DriverVersions)


def load_node(wanted: str, products: Mapping[str, Product], path: str = "gpus") -> NodeSpec:
    """Read a specification, or the file that `wanted` names (by a `/` or the suffix `.yaml`).

    :raises InvalidValueError: naming `path` or the file's field.
    """
    if "/" in wanted or wanted.endswith((".yaml", ".yml")):
        return decode_node(load_yaml(read_text(Path(wanted)), wanted), products, wanted)
    return parse_node(wanted, products, path)


def parse_node(spec: str, products: Mapping[str, Product], path: str = "gpus") -> NodeSpec:
    """Parse a specification such as `h100:8,l4:2`.

    :raises InvalidValueError: naming `path` and what is allowed.
    """
    return _node([_parse_group(item.strip(), products, path) for item in spec.split(",")], path, DriverVersions())


def decode_node(value: object, products: Mapping[str, Product], path: str) -> NodeSpec:
    """Decode the content of a node file.

    :raises InvalidValueError: naming the field.
    """
    fields = Fields(value, path, separator=": ")
    groups = [_decode_group(Fields(one, at), products) for one, at in fields.items("gpus")]
    versions = DriverVersions(
        driver=fields.text("driver_version") if "driver_version" in fields else "",
        cuda=fields.text("cuda_version") if "cuda_version" in fields else "",
    )
    fields.take("driver_version", None)
    fields.take("cuda_version", None)
    fields.done()
    return _node(groups, fields.at("gpus"), versions)


def _node(groups: Sequence[Group], path: str, versions: DriverVersions) -> NodeSpec:
    total = sum(group.count for group in groups)
    if not 1 <= total <= MAX_GPUS:
        raise InvalidValueError(path, total, f"a fake node has 1 to {MAX_GPUS} GPUs")
    first = groups[0].product
    merged = DriverVersions(
        driver=versions.driver or first.driver_version,
        cuda=versions.cuda or first.cuda_version,
    )
    return NodeSpec(groups=tuple(groups), versions=merged)


def _parse_group(item: str, products: Mapping[str, Product], path: str) -> Group:
    match = _GROUP.fullmatch(item)
    if match is None:
        raise InvalidValueError(path, item, f"must be {GRAMMAR}")
    product = find_product(products, match["product"], path)
    wiring, plan = product.wiring, None
    for option in match["options"].split("@")[1:]:
        name, equals, argument = option.partition("=")
        if name == "mig" and bool(equals) == bool(argument):
            plan = plan_mig(product, _parse_plan(argument, path), path)
        elif name in _WIRINGS and not equals:
            wiring = _wiring(product, name, path)
        else:
            raise InvalidValueError(path, f"@{option}", f"no such option; the form is {GRAMMAR}")
    return Group(product=product, count=_count(match["count"], path), wiring=wiring, mig=plan)


def _count(digits: str | None, path: str) -> int:
    if digits is None:
        return 1
    if re.fullmatch(r"[0-9]{1,4}", digits) and 1 <= int(digits) <= MAX_GPUS:
        return int(digits)
    raise InvalidValueError(path, digits, f"a count is a whole number from 1 to {MAX_GPUS}")


def _wiring(product: Product, name: str, path: str) -> Wiring:
    wiring = _WIRINGS[name]
    if wiring is not Wiring.NONE and product.nvlinks == 0:
        raise InvalidValueError(path, name, f"{product.name} has no NVLink")
    return wiring


def _decode_group(fields: Fields, products: Mapping[str, Product]) -> Group:
    product = find_product(products, fields.text("product"), fields.at("product"))
    wiring = product.wiring
    if "nvlink" in fields:
        wiring = _wiring(product, fields.choice("nvlink", _WIRINGS), fields.at("nvlink"))
    plan = None
    if "mig" in fields:
        items = [_one_item(text(one, at), at) for one, at in fields.items("mig")]
        plan = plan_mig(product, [wish for wishes in items for wish in wishes], fields.at("mig"))
    count = fields.integer("count", 1, MAX_GPUS, 1)
    fields.take("nvlink", None)
    fields.take("mig", None)
    fields.done()
    return Group(product=product, count=count, wiring=wiring, mig=plan)


def _parse_plan(plan: str, path: str) -> list[tuple[str, int | None]]:
    # A `+` before a digit separates devices; before a letter it belongs to the name (1g.10gb+me).
    items = re.split(r"\+(?=\d)", plan) if plan else []
    return [wish for item in items for wish in _one_item(item, path)]


def _one_item(item: str, path: str) -> list[tuple[str, int | None]]:
    match = _MIG_ITEM.fullmatch(item)
    times = int(match["times"] or 1) if match else 0
    if match is None or times == 0:
        raise InvalidValueError(path, item, "a MIG device is PROFILE[:START][*N], such as 1g.10gb*3 or 3g.40gb:4")
    return [(match["profile"], int(match["start"]) if match["start"] else None)] * times


def plan_mig(
    product: Product, wishes: Sequence[tuple[str, int | None]], path: str
) -> tuple[tuple[MigProfile, Placement], ...]:
    """Give each wished MIG device (profile name, start or None) a placement of a GPU of this product.

    :raises InvalidValueError: no MIG, no such profile or start, or they don't fit together.
    """
    if product.mig is None:
        raise InvalidValueError(path, product.name, "this product has no MIG")
    choices = [_choices(product.mig, name, start, path) for name, start in wishes]
    for profile, _ in choices:
        if sum(other is profile for other, _ in choices) > profile.max_instances:
            raise InvalidValueError(path, profile.name, f"at most {profile.max_instances} of it fit on a GPU")
    placed = _fit(choices, ())
    if placed is None:
        names = [f"{name}:{start}" if start is not None else name for name, start in wishes]
        raise InvalidValueError(path, "+".join(names), f"these MIG devices don't fit on one {product.name}")
    return tuple((profile, placement) for (profile, _), placement in zip(choices, placed, strict=True))


def _choices(support: MigSupport, name: str, start: int | None, path: str) -> _Choice:
    profile = support.profile(name)
    if profile is None:
        known = [one.name for one in support.profiles]
        raise InvalidValueError(path, name, f"no such MIG profile; {suggestion(name, known)}")
    placements = tuple(one for one in profile.placements if start in (None, one.start))
    if not placements:
        starts = ", ".join(str(one.start) for one in profile.placements)
        raise InvalidValueError(path, f"{name}:{start}", f"{name} starts at {starts}")
    return profile, placements


def _fit(choices: Sequence[_Choice], taken: tuple[Placement, ...]) -> tuple[Placement, ...] | None:
    """Return a placement for each of `choices`, the first found that overlaps none, or None."""
    if len(taken) == len(choices):
        return taken
    for placement in choices[len(taken)][1]:
        if not any(placement.overlaps(other) for other in taken):
            found = _fit(choices, (*taken, placement))
            if found is not None:
                return found
    return None
