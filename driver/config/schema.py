"""The JSON Schema of the opaque parameters, made of the declarations that decode them. Pure.

It is for editors, and for checks before anything reaches a cluster. It accepts all that the driver accepts; beyond it,
the driver refuses memory limits below 1Mi that are written as text, and what doesn't fit the allocated devices.
"""

from __future__ import annotations

from driver.config.fields import Schema, optional, schema
from driver.config.parameters import KINDS, MPS, TIME_SLICING, GpuConfig, Mps, TimeSlicing
from driver.model import names

DIALECT = "https://json-schema.org/draft/2020-12/schema"

_NULL: Schema = {"type": "null"}


def parameters_schema() -> Schema:
    """Return the schema of `opaque.parameters` in a ResourceClaim, a template or a DeviceClass."""
    return {
        "$schema": DIALECT,
        "title": f"Parameters of the driver {names.DRIVER}, {names.PARAMETERS_API_VERSION}",
        "description": "How the devices of a claim are shared; content of `config[].opaque.parameters`.",
        "type": "object",
        "required": ["apiVersion", "kind"],
        "oneOf": [_config(kind) for kind in KINDS],
    }


def _config(kind: str) -> Schema:
    properties = {
        "apiVersion": {"const": names.PARAMETERS_API_VERSION},
        "kind": {"const": kind},
        "sharing": {"oneOf": [*_strategies(whole=kind == GpuConfig.__name__), _NULL]},
    }
    return {"type": "object", "properties": properties, "additionalProperties": False}


def _strategies(*, whole: bool) -> tuple[Schema, Schema]:
    """Return both strategies; MIG devices have no time slices to configure. `null` is the same as nothing."""
    mine = {"timeSlicingConfig": optional(schema(TimeSlicing))} if whole else {}
    none = {"timeSlicingConfig": _NULL} if whole else {}
    return (
        _strategy(TIME_SLICING, {**mine, "mpsConfig": _NULL}),
        _strategy(MPS, {**none, "mpsConfig": optional(schema(Mps))}),
    )


def _strategy(name: str, properties: Schema) -> Schema:
    return {
        "type": "object",
        "required": ["strategy"],
        "properties": {"strategy": {"const": name}, **properties},
        "additionalProperties": False,
    }
