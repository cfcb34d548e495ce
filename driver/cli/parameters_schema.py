"""`gpu-dra parameters-schema`: the JSON Schema of what a claim's or a class's parameters may hold."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from driver.config.schema import parameters_schema

if TYPE_CHECKING:
    from argparse import ArgumentParser, Namespace

DESCRIPTION = """\
Print the JSON Schema of opaque parameters (resource.nvidia.com/v1beta1): what to check claims, claim templates and
device classes with before they reach a cluster. deploy/parameters.schema.json is the same.
"""
EPILOG = """\
examples:
  gpu-dra parameters-schema >parameters.schema.json
"""


def add_arguments(parser: ArgumentParser) -> None:
    """Add none."""


def run(args: Namespace) -> int:
    """Print the schema."""
    print(json.dumps(parameters_schema(), indent=2))
    return 0
