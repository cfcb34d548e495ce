"""Who tells people what happens on this node: `driver.kube.events`, by Kubernetes' Events."""

from __future__ import annotations

from typing import Protocol


class Teller(Protocol):
    """Tells without raising or waiting."""

    def emit(self, reason: str, message: str, *, warning: bool = False) -> None:
        """Tell that something happened: a CamelCase reason, and a message for people."""
        ...
