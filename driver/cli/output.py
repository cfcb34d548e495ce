"""How commands print: tables for people, JSON and YAML for programs."""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterable, Sequence

FORMATS = ("table", "json", "yaml")


def add_format(parser: argparse.ArgumentParser) -> None:
    """Add `-o`."""
    parser.add_argument("-o", "--output", choices=FORMATS, default="table", help="output format (default: table)")


def print_value(style: str, value: object) -> None:
    """Print one value, as JSON or YAML."""
    if style == "json":
        _print_json(value)
    else:
        _print_yaml([value])


def print_objects(style: str, items: Sequence[object]) -> None:
    """Print Kubernetes objects as kubectl takes them: a List in JSON, documents in YAML."""
    if style == "json":
        _print_json({"apiVersion": "v1", "kind": "List", "items": items})
    else:
        _print_yaml(items)


def print_table(header: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    """Print aligned columns; an empty cell shows as `-`."""
    lines = [[str(cell) for cell in header]]
    lines += [["-" if cell in (None, "") else str(cell) for cell in row] for row in rows]
    widths = [max(len(line[column]) for line in lines) for column in range(len(header))]
    for line in lines:
        print("  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip())


def _print_json(value: object) -> None:
    json.dump(value, sys.stdout, indent=2, ensure_ascii=False)
    print()


def _print_yaml(documents: Iterable[object]) -> None:
    import yaml

    dumper: Any = getattr(yaml, "CSafeDumper", yaml.SafeDumper)
    yaml.dump_all(
        documents, sys.stdout, Dumper=dumper, sort_keys=False, default_flow_style=False, allow_unicode=True, width=120
    )
