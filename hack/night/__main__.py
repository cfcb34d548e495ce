"""Run what takes too long for every change, each part after the other, and sum up.

Each part's output is kept in a file of its own; the exit status is 0 only if all of them passed.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

PYTEST = ("-m", "pytest", "-q", "--numprocesses=auto", "--dist=worksteal", "--timeout=3600")

FUZZ = ("tests/property/test_decoders.py", "tests/property/test_cdi_resolver.py")
NAMES = ("fuzz", "properties", "examples", "image", "soak", "bench", "scale")


@dataclass(frozen=True, kw_only=True)
class Part:
    """A part of the night. `command` are arguments of Python; `tail`, how many of its last lines are shown."""

    about: str
    command: tuple[str, ...]
    tail: int = 1


def parts(options: argparse.Namespace) -> dict[str, Part]:
    """Return all parts, in the order in which they run."""
    soak = ("--minutes", str(options.minutes), *(("--seed", str(options.seed)) if options.seed is not None else ()))
    bench = str(options.logs / "bench.json"), str(options.logs / "scale.json")
    return {
        "fuzz": Part(
            about="damaged files, objects and streams for every decoder, ten times the usual number",
            command=(*PYTEST, *FUZZ),
        ),
        "properties": Part(
            about="property tests with ten times the usual examples; 10,000 claims with effects and crashes",
            command=(*PYTEST, "tests/property", *(word for file in FUZZ for word in ("--ignore", file))),
        ),
        "examples": Part(
            about="the property tests among the unit tests, likewise",
            command=(*PYTEST, "tests/unit", "-m", "hypothesis"),
        ),
        "image": Part(
            about="the Dockerfile's build stage, in a directory (downloads all dependencies)",
            command=(*PYTEST, "tests/deploy/test_image.py"),
        ),
        "soak": Part(
            about="random pods, faults and restarts on the local cluster; then nothing is left, nothing has grown",
            command=("-m", "hack.night.soak", *soak),
            tail=16,
        ),
        "bench": Part(about="hack/bench", command=("-m", "hack.benchmarks", "--json", bench[0]), tail=60),
        "scale": Part(
            about="hack/bench --scale", command=("-m", "hack.benchmarks", "--scale", "--json", bench[1]), tail=60
        ),
    }


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """How a part ended."""

    name: str
    passed: bool
    seconds: float
    last: str


def run(name: str, part: Part, log: Path) -> Outcome:
    """Run one part; show the end of what it said."""
    print(f"--- {name}: {part.about}", flush=True)
    began = time.monotonic()
    with log.open("w") as file:
        environment = {**os.environ, "NIGHTLY": "1"}
        done = subprocess.run([sys.executable, *part.command], stdout=file, stderr=file, env=environment, check=False)
    lines = log.read_text(errors="replace").rstrip().splitlines() or [""]
    print("\n".join(lines if done.returncode and len(lines) < 200 else lines[-part.tail :]), flush=True)
    return Outcome(name=name, passed=done.returncode == 0, seconds=time.monotonic() - began, last=lines[-1])


def summary(outcomes: Sequence[Outcome]) -> Iterator[str]:
    """Yield one line per part."""
    for one in outcomes:
        yield f"{'passed' if one.passed else 'FAILED'}  {one.seconds:6.0f} s  {one.name:<11} {one.last[:100]}"


def main() -> int:
    """Run the chosen parts; return the exit status."""
    options = _parser().parse_args()
    options.logs.mkdir(parents=True, exist_ok=True)
    chosen = parts(options)
    outcomes = [run(name, chosen[name], options.logs / f"{name}.log") for name in chosen if name in options.only]
    print("\n" + "\n".join(summary(outcomes)) + f"\n\nIn full: {options.logs}/")
    return 0 if all(one.passed for one in outcomes) else 1


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="hack/nightly", description=__doc__)
    parser.add_argument("--only", nargs="+", choices=NAMES, default=NAMES, metavar="PART", help=", ".join(NAMES))
    parser.add_argument("--minutes", type=float, default=5, help="how long to soak (default 5)")
    parser.add_argument("--seed", type=int, help="repeat a soak (it prints its seed)")
    parser.add_argument("--logs", type=Path, default=Path(".nightly"), help="where the output goes (default .nightly)")
    return parser


if __name__ == "__main__":
    sys.exit(main())
