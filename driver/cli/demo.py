"""`gpu-dra demo`: all of it on an embedded cluster."""

from __future__ import annotations

import argparse
import importlib
from typing import Any

from driver.errors import SettingsError

DESCRIPTION = "Try all of it on an embedded cluster with fake GPUs."
EPILOG = ""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Leave all arguments, `--help` included, to the demo itself."""
    parser.prefix_chars = "\0"
    parser.add_argument("arguments", nargs=argparse.REMAINDER)


def run(args: argparse.Namespace) -> int:
    """Run the demo."""
    try:
        demo: Any = importlib.import_module("driver.localcluster.demo")  # its libraries are an extra
    except ModuleNotFoundError as exc:
        raise SettingsError(
            f"the demo needs the embedded cluster, and {exc.name} is missing: pip install 'gpu-dra[localcluster]'"
        ) from exc
    return int(demo.main(args.arguments))
