"""What the demo prints: steps with the time they were done at, tables, and the verdict."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, TextIO

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

_DONE, _FAILED = "\u2713", "\u2717"


class Screen:
    """Prints as things happen, and remembers whether all of them held."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._start = time.monotonic()
        self._colors = stream.isatty()
        self._waiting = ""
        self.failures: list[str] = []

    def waiting(self, what: str) -> None:
        """Say what is waited for; on a terminal the next step takes its place."""
        if self._colors:
            self._waiting = f"{self._moment()}   {what} ..."
            self._put(self._waiting, end="\r")

    def done(self, what: str) -> None:
        """Say that a step held."""
        self._line(f"{self._moment()} {self._paint(_DONE, 32)} {what}")

    def failed(self, what: str) -> None:
        """Say that a step did not hold; the demo then fails."""
        self.failures.append(what)
        self._line(f"{self._moment()} {self._paint(_FAILED, 31)} {what}")

    def check(self, held: bool, what: str, otherwise: str) -> None:
        """Say whether something held."""
        if held:
            self.done(what)
        else:
            self.failed(otherwise)

    def heading(self, text: str) -> None:
        """Begin a part."""
        self._line("")
        self._line(self._paint(text, 1))

    def text(self, text: str, *, indent: str = "  ") -> None:
        """Print lines as they are."""
        for line in text.splitlines():
            self._line(f"{indent}{line}".rstrip())

    def table(self, header: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
        """Print aligned columns."""
        lines = [[*header], *([str(cell) if cell not in (None, "") else "-" for cell in row] for row in rows)]
        widths = [max(len(line[column]) for line in lines) for column in range(len(header))]
        for line in lines:
            self.text("  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)))

    def close(self) -> int:
        """Print the verdict; return the exit status."""
        seconds = time.monotonic() - self._start
        self._line("")
        if self.failures:
            self._line(self._paint(f"{len(self.failures)} things did not hold, in {seconds:.1f} s:", 31))
            self.text("\n".join(self.failures))
            return 1
        self._line(self._paint(f"Everything held, in {seconds:.1f} s.", 32))
        return 0

    def _moment(self) -> str:
        return f"{time.monotonic() - self._start:5.1f} s"

    def _line(self, text: str) -> None:
        if self._waiting:
            self._put(" " * len(self._waiting), end="\r")
            self._waiting = ""
        self._put(text)

    def _put(self, text: str, end: str = "\n") -> None:
        print(text, end=end, file=self._stream, flush=True)

    def _paint(self, text: str, code: int) -> str:
        return f"\033[{code}m{text}\033[0m" if self._colors else text
