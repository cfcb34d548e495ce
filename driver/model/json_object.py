"""What JSON has for an object: Kubernetes' objects are read and written as such. Pure."""

from __future__ import annotations

from typing import Any

JsonObject = dict[str, Any]
