"""`gpu-dra`: one command for the agent and its tools.

Each command is a module that is loaded with what it needs only when it runs, so that `--version`, `--help` and shell
completion are quick.
"""

from __future__ import annotations

import argparse
import importlib
import os
import signal
import sys
from typing import TYPE_CHECKING, NoReturn, cast

import driver
from driver.errors import DriverError, InvalidValueError, SettingsError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from driver.cli.command import Command

OK, FAILED, USAGE = 0, 1, 2
INTERRUPTED = 128 + signal.SIGINT

COMMANDS = {
    "run": "run the agent on this node",
    "demo": "try all of it on an embedded cluster with fake GPUs",
    "inventory": "show this node's GPUs, or fake ones",
    "slices": "show the ResourceSlices that would be published",
    "device-classes": "show the DeviceClasses to install for this node's GPUs",
    "parameters-schema": "print the JSON Schema of the parameters of claims and classes",
    "fault": "break fake GPUs, and mend them: rehearse what you do when real ones fail",
    "status": "show this node's devices: holders, health, use (asks the agent)",
    "top": "the same, live",
    "migrate": "show who offers and who holds each GPU of this node",
    "completion": "print a completion script for a shell",
}
"""The commands; each has a module of its name here."""

_EPILOG = """\
examples:
  gpu-dra demo                                    everything, on this machine, in a minute
  gpu-dra inventory --gpus h100:8 --topology      eight fake H100s and how they are connected
  gpu-dra slices --gpus a100-80:4,l4:2 -o yaml    what the scheduler would see of them
  gpu-dra run --config /etc/gpu-dra.yaml          the agent (needs a kubelet and an API server)

exit status:
  0  all went well
  1  it failed; the message says why
  2  the command line or a setting is wrong
"""


class HelpFormatter(argparse.RawDescriptionHelpFormatter):
    """Keeps examples as they are, and a flag's help beside it."""

    def __init__(self, prog: str) -> None:
        super().__init__(prog, max_help_position=36)


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command and return its exit status."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    try:
        return _run(arguments)
    except (InvalidValueError, SettingsError) as exc:
        print(f"gpu-dra: {exc}", file=sys.stderr)
        return USAGE
    except DriverError as exc:
        print(f"gpu-dra: {exc}", file=sys.stderr)
        return FAILED
    except KeyboardInterrupt:
        return INTERRUPTED
    except BrokenPipeError:
        # Who read our output has what they wanted (`| head`); nothing is left to flush into the closed pipe.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return OK


def _run(arguments: list[str]) -> int:
    name = arguments[0] if arguments else ""
    parser = build_parser([name] if name in COMMANDS else [])
    if name not in COMMANDS:
        _explain(parser, arguments)
    args, unknown = parser.parse_known_args(arguments)
    if hasattr(args, "words"):  # argparse knows no words after a flag
        args.words += [word for word in unknown if not word.startswith("-")]
        unknown = [word for word in unknown if word.startswith("-")]
    if unknown:
        _refuse(parser, name, unknown)
    status = load(name).run(args)
    sys.stdout.flush()
    return status


def _explain(parser: argparse.ArgumentParser, arguments: list[str]) -> NoReturn:
    """Answer what names no command: `--help`, `--version`, or a mistake."""
    if not arguments:
        parser.print_help(sys.stderr)
        sys.exit(USAGE)
    parser.parse_args(arguments)
    parser.error("which command?")


def _refuse(parser: argparse.ArgumentParser, name: str, unknown: Sequence[str]) -> NoReturn:
    """End with what was not understood, and the flag that looks most like it."""
    from driver.cli.completion import subparsers
    from driver.model.decode import suggestion

    command = subparsers(parser)[name]
    flags = [flag for action in command._actions for flag in action.option_strings if flag.startswith("--")]
    word = unknown[0].partition("=")[0]
    hint = f"; {suggestion(word, flags)}" if word.startswith("-") else ""
    command.error(f"unrecognized arguments: {' '.join(unknown)}{hint}")


def load(name: str) -> Command:
    """Load a command's module."""
    return cast("Command", importlib.import_module(f"driver.cli.{name.replace('-', '_')}"))


def build_parser(loaded: Sequence[str]) -> argparse.ArgumentParser:
    """Return the parser; of the commands, only those in `loaded` know their own arguments."""
    parser = argparse.ArgumentParser(
        prog="gpu-dra",
        description=driver.__doc__,
        epilog=_EPILOG,
        formatter_class=HelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("--version", action="version", version=f"gpu-dra {driver.__version__}")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", title="commands")
    for name, summary in COMMANDS.items():
        if name not in loaded:
            commands.add_parser(name, help=summary, allow_abbrev=False)
            continue
        module = load(name)
        command = commands.add_parser(
            name,
            help=summary,
            description=module.DESCRIPTION,
            epilog=module.EPILOG,
            formatter_class=HelpFormatter,
            allow_abbrev=False,
            add_help=name != "demo",
        )
        module.add_arguments(command)
    return parser
