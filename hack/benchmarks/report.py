"""What a benchmark says: rows of a table for people, and the same as JSON for machines."""

from __future__ import annotations

import json
import os
import platform
import statistics
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from pathlib import Path


def median(samples: Sequence[float]) -> float:
    """Return the p50."""
    return statistics.median(samples)


def grid(lines: Sequence[Sequence[str]]) -> str:
    """Return lines of cells as aligned columns."""
    widths = [max(len(line[column]) for line in lines) for column in range(len(lines[0]))]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip() for line in lines
    )


@dataclass(frozen=True, kw_only=True)
class Row:
    """One result. With a `floor`, the ratio is what counts; without, the value itself. Limits are upper bounds."""

    what: str
    value: float
    unit: str = "ms"
    floor: float | None = None
    floor_is: str = ""
    limit: float | None = None

    @property
    def measure(self) -> float:
        """What the limit is about."""
        return self.value if self.floor is None else self.value / self.floor

    @property
    def held(self) -> bool:
        """Whether the limit holds."""
        return self.limit is None or self.measure <= self.limit

    def cells(self) -> tuple[str, ...]:
        """Return the table's cells."""
        ratio = f"{self.measure:.2f} x" if self.floor is not None else ""
        limit = "" if self.limit is None else f"<= {self.limit:g}{' x' if self.floor is not None else ' ' + self.unit}"
        verdict = "" if self.limit is None else "ok" if self.held else "MISSED"
        floor = "" if self.floor is None else f"{self.floor:.2f} {self.unit}"
        return self.what, f"{self.value:.2f} {self.unit}", floor, ratio, limit, verdict, self.floor_is


@dataclass
class Report:
    """All rows of a run."""

    rows: list[Row] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    """Further tables, for people."""

    def add(self, row: Row) -> None:
        """Add a result."""
        self.rows.append(row)

    def extend(self, rows: Iterable[Row]) -> None:
        """Add results."""
        self.rows.extend(rows)

    def text(self) -> str:
        """Return everything for people: the table, what was missed, further tables."""
        parts = [self.table(), self._verdict()] if self.rows else []
        return "\n\n".join([*parts, *self.notes])

    def _verdict(self) -> str:
        missed = [row.what for row in self.rows if not row.held]
        limited = sum(row.limit is not None for row in self.rows)
        return f"Missed: {'; '.join(missed)}" if missed else f"All {limited} targets are met."

    def table(self) -> str:
        """Return the table."""
        head = ("what", "p50", "floor", "ratio", "target", "", "the floor is")
        return grid([head, *(row.cells() for row in self.rows)])

    def write(self, path: Path) -> None:
        """Write the rows as JSON."""
        rows = [asdict(row) | {"ratio": row.measure if row.floor else None, "held": row.held} for row in self.rows]
        machine = {"cpus": os.cpu_count(), "python": platform.python_version(), "kernel": platform.release()}
        path.write_text(json.dumps({"machine": machine, "rows": rows}, indent=2) + "\n")
