"""What was asked of the server, for tests and benchmarks: who called what how often, and did it write."""

from __future__ import annotations

import json
from collections import Counter, deque
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

WRITES = frozenset({"create", "update", "patch", "delete", "deletecollection"})
"""The verbs that may change something."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """One request, in the words of RBAC. `code` is 0 until it is answered; a watch is written when it starts."""

    user: str
    verb: str
    group: str = ""
    version: str = ""
    resource: str = ""
    subresource: str = ""
    namespace: str = ""
    name: str = ""
    path: str = ""
    """Only for requests that name no resource (discovery, version)."""
    code: int = 0

    @property
    def writes(self) -> bool:
        """Say whether it is a verb that may change something."""
        return self.verb in WRITES

    @property
    def full_resource(self) -> str:
        """The resource as roles name it, `pods` or `pods/status`."""
        return f"{self.resource}/{self.subresource}" if self.subresource else self.resource


class AuditLog:
    """The last calls, and counts of all: by verb and resource (with `/subresource`)."""

    def __init__(self, *, keep: int = 100_000, file: Path | None = None) -> None:
        self.calls: deque[Call] = deque(maxlen=keep)
        self.counts: Counter[tuple[str, str]] = Counter()
        self._file = file.open("a", encoding="utf-8", buffering=1) if file else None

    def record(self, call: Call) -> None:
        """Add an answered call."""
        self.calls.append(call)
        self.counts[call.verb, call.full_resource or call.path] += 1
        if self._file:
            self._file.write(json.dumps(asdict(call)) + "\n")

    def clear(self) -> None:
        """Forget all calls and counts."""
        self.calls.clear()
        self.counts.clear()

    @property
    def requests(self) -> int:
        """The number of calls since the start or `clear`."""
        return sum(self.counts.values())

    @property
    def writes(self) -> int:
        """The number of calls that may have changed something."""
        return sum(count for (verb, _), count in self.counts.items() if verb in WRITES)

    def by(self, user: str) -> list[Call]:
        """Return the calls of one user."""
        return [call for call in self.calls if call.user == user]

    def close(self) -> None:
        """Close the file."""
        if self._file:
            self._file.close()
            self._file = None
