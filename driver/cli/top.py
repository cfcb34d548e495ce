"""`gpu-dra top`: the status, live."""

from __future__ import annotations

import itertools
import json
import shutil
import sys
import time
from typing import TYPE_CHECKING

from driver.cli.status import SETTINGS
from driver.settings import add_flags, load_settings
from driver.settings.options import seconds

if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterator

    from driver.settings import Settings

DESCRIPTION = """\
Show what `gpu-dra status` shows, again and again. On a terminal the screen is redrawn, Ctrl-C ends it; elsewhere each
look is printed below the last. The agent may be restarted meanwhile.
"""
EPILOG = """\
examples:
  gpu-dra top                             on the node, as root
  kubectl exec -it -n gpu-dra daemonset/gpu-dra -- gpu-dra top
  gpu-dra top --interval 10s -n 6         a minute, six looks
  gpu-dra top -o json -n 100 > use.jsonl  a line of JSON for each look

exit status: 0 all shown; 1 no agent answered at first; 2 wrong usage; 130 interrupted.
"""

_INTERVAL = seconds(0.2, 3600)
_ENTER, _LEAVE = "\x1b[?1049h\x1b[?25l", "\x1b[?25h\x1b[?1049l"  # a screen of its own, without a cursor
_HOME, _END_LINE, _END_SCREEN = "\x1b[H", "\x1b[K", "\x1b[J"
_BOLD, _RED, _PLAIN = "\x1b[1m", "\x1b[31m", "\x1b[0m"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's arguments."""
    parser.add_argument(
        "-n", "--count", type=_count, metavar="N", help="end after so many looks (default: when interrupted)"
    )
    parser.add_argument(
        "--interval", type=_INTERVAL.parse, default=2.0, metavar="DURATION", help="time between looks (default: 2s)"
    )
    parser.add_argument("-o", "--output", choices=("table", "json"), default="table", help="output format")
    add_flags(parser, SETTINGS)


def run(args: argparse.Namespace) -> int:
    """Show the status until interrupted, or `--count` times."""
    settings = load_settings(vars(args))
    if args.output == "json":
        for look in _looks(settings, args.interval, args.count, as_json=True):
            print(*look, sep="\n", flush=True)
    elif sys.stdout.isatty():
        _on_terminal(settings, args.interval, args.count)
    else:
        for number, look in enumerate(_looks(settings, args.interval, args.count)):
            print(*([""] if number else []), *look, sep="\n", flush=True)
    return 0


def _on_terminal(settings: Settings, interval: float, count: int | None) -> None:
    looks = _looks(settings, interval, count)
    last = next(looks)  # that no agent answers is told on the normal screen
    sys.stdout.write(_ENTER)
    try:
        for look in itertools.chain([last], looks):
            last = look
            size = shutil.get_terminal_size()
            sys.stdout.write(screen(look, columns=size.columns, lines=size.lines))
            sys.stdout.flush()
    finally:
        sys.stdout.write(_LEAVE)
        print("\n".join(last))  # what was seen last stays


def screen(look: list[str], *, columns: int, lines: int) -> str:
    """Return what draws a look over the last one, cut to the terminal's size."""
    shown = look if len(look) <= lines else [*look[: lines - 1], f"... {len(look) - lines + 1} more lines"]
    return _HOME + "\n".join(_painted(line[:columns]) + _END_LINE for line in shown) + _END_SCREEN


def _painted(line: str) -> str:
    if line.startswith("DEVICE"):
        return f"{_BOLD}{line}{_PLAIN}"
    words = line.split()
    return f"{_RED}{line}{_PLAIN}" if "BAD" in words or "READY" in words else line


def _looks(settings: Settings, interval: float, count: int | None, *, as_json: bool = False) -> Iterator[list[str]]:
    """Yield the lines of each look. An agent that goes away is waited for, one that never was is an error."""
    from driver.cli.agent_socket import NoAgentError, read_status
    from driver.cli.status_screen import render

    for number in itertools.count() if count is None else range(count):
        if number:
            time.sleep(interval)
        try:
            status = read_status(settings)
        except NoAgentError as exc:
            if not number:
                raise
            yield [json.dumps({"error": str(exc)})] if as_json else [f"{exc}", "waiting for it"]
        else:
            yield [json.dumps(status)] if as_json else render(status)


def _count(text: str) -> int:
    number = int(text)
    if number < 1:
        raise ValueError
    return number
