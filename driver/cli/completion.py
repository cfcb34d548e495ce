"""`gpu-dra completion`: scripts for bash, zsh and fish, made of the parsers themselves."""

from __future__ import annotations

import argparse
import re
import shlex
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

DESCRIPTION = "Print a script that makes a shell complete gpu-dra's commands, flags and values."
EPILOG = """\
examples:
  source <(gpu-dra completion bash)                                     for this shell
  gpu-dra completion bash > /etc/bash_completion.d/gpu-dra              for all
  gpu-dra completion zsh > "${fpath[1]}/_gpu-dra"
  gpu-dra completion fish > ~/.config/fish/completions/gpu-dra.fish
"""

SHELLS = ("bash", "zsh", "fish")


@dataclass(frozen=True, slots=True)
class Flag:
    """A flag as completion needs it."""

    names: tuple[str, ...]
    help: str
    takes_value: bool
    choices: tuple[str, ...]
    files: bool
    position: str = ""  # of an argument without a name, as zsh writes it: 1, 2, or * for all that follow


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's arguments."""
    parser.add_argument("shell", choices=SHELLS)


def run(args: argparse.Namespace) -> int:
    """Print the script."""
    writers = {"bash": bash, "zsh": zsh, "fish": fish}
    print(writers[args.shell](_all_flags()), end="")
    return 0


def _all_flags() -> dict[str, tuple[Flag, ...]]:
    """Return the flags of each command."""
    from driver.cli import COMMANDS, build_parser

    commands = subparsers(build_parser([*COMMANDS]))
    return {name: tuple(_flags(command)) for name, command in commands.items()}


def subparsers(parser: argparse.ArgumentParser) -> dict[str, argparse.ArgumentParser]:
    """Return the parsers of the commands; argparse has no public way to them."""
    action = next(one for one in parser._actions if isinstance(one, argparse._SubParsersAction))
    return dict(action.choices)


def _flags(parser: argparse.ArgumentParser) -> Iterator[Flag]:
    positions = 0
    for action in parser._actions:
        if action.help == argparse.SUPPRESS:
            continue
        kind = getattr(action, "completion", None)
        choices = tuple(action.choices or (kind.choices if kind else ()))
        files = action.metavar == "FILE" or bool(kind and kind.files)
        names = tuple(name for name in action.option_strings if name.startswith("-"))
        if not names:
            positions += 1
        if names or choices:
            position = "" if names else "*" if action.nargs == "*" else str(positions)
            text = (action.help or "").split(" [")[0].replace("%%", "%")
            yield Flag(names, text, action.nargs != 0, choices, files, position)


def bash(commands: Mapping[str, tuple[Flag, ...]]) -> str:
    """Write the script for bash."""
    words, values = [], []
    for command, flags in commands.items():
        offered = [name for flag in flags for name in (flag.names or flag.choices)]
        words.append(f"    {command}) words={shlex.quote(' '.join(offered))} ;;")
        for flag in flags:
            if flag.names and flag.takes_value:
                pattern = "|".join(f"{command}:{name}" for name in flag.names)
                values.append(f"    {pattern}) {_bash_value(flag)} ;;")
    return _BASH.format(commands=" ".join(commands), words="\n".join(words), values="\n".join(values))


def _bash_value(flag: Flag) -> str:
    if flag.choices:
        return f'COMPREPLY=($(compgen -W "{" ".join(flag.choices)}" -- "$word")); return'
    return 'COMPREPLY=($(compgen -f -- "$word")); return' if flag.files else "COMPREPLY=(); return"


_BASH = """\
# bash completion for gpu-dra
_gpu_dra() {{
  local word="${{COMP_WORDS[COMP_CWORD]}}" previous="${{COMP_WORDS[COMP_CWORD-1]}}" command="${{COMP_WORDS[1]}}" words
  if [ "$COMP_CWORD" -eq 1 ]; then
    COMPREPLY=($(compgen -W "{commands} --help --version" -- "$word"))
    return
  fi
  case "$command:$previous" in
{values}
  esac
  case "$command" in
{words}
  esac
  COMPREPLY=($(compgen -W "$words" -- "$word"))
}}
complete -o filenames -F _gpu_dra gpu-dra
"""


def zsh(commands: Mapping[str, tuple[Flag, ...]]) -> str:
    """Write the script for zsh."""
    from driver.cli import COMMANDS

    described = "\n".join(f"    {shlex.quote(f'{name}:{COMMANDS[name]}')}" for name in commands)
    cases = []
    for command, flags in commands.items():
        specs = " ".join(spec for flag in flags for spec in _zsh_specs(flag))
        cases.append(f"    {command}) _arguments {specs} ;;")
    return _ZSH.format(described=described, cases="\n".join(cases))


def _zsh_specs(flag: Flag) -> Iterator[str]:
    action = f"({' '.join(flag.choices)})" if flag.choices else "_files" if flag.files else " "
    text = re.sub(r"([\[\]:])", r"\\\1", flag.help)
    for name in flag.names:
        yield shlex.quote(f"{name}[{text}]" + (f":value:{action}" if flag.takes_value else ""))
    if not flag.names:
        yield shlex.quote(f"{flag.position}:value:{action}")


_ZSH = """\
#compdef gpu-dra
_gpu_dra() {{
  local -a commands=(
{described}
  )
  if (( CURRENT == 2 )); then
    _describe command commands
    _arguments '--help[show help]' '--version[show the version]'
    return
  fi
  local command=$words[2]
  shift words
  (( CURRENT-- ))
  case $command in
{cases}
  esac
}}
if [[ $funcstack[1] == _gpu-dra ]]; then
  _gpu_dra "$@" # loaded from fpath, for this very completion
else
  compdef _gpu_dra gpu-dra
fi
"""


def fish(commands: Mapping[str, tuple[Flag, ...]]) -> str:
    """Write the script for fish."""
    from driver.cli import COMMANDS

    lines = ["# fish completion for gpu-dra", "complete -c gpu-dra -f"]
    lines += [
        f"complete -c gpu-dra -n __fish_use_subcommand -a {name} -d {_fish_quote(COMMANDS[name])}" for name in commands
    ]
    for name, flags in commands.items():
        lines += [_fish_line(name, flag) for flag in flags]
    return "\n".join(lines) + "\n"


def _fish_line(command: str, flag: Flag) -> str:
    parts = [f"complete -c gpu-dra -n '__fish_seen_subcommand_from {command}'"]
    parts += [f"-l {name[2:]}" if name.startswith("--") else f"-s {name[1:]}" for name in flag.names]
    if flag.choices:
        parts.append(f"{'-x ' if flag.names else ''}-a {_fish_quote(' '.join(flag.choices))}")
    elif flag.files:
        parts.append("-r -F")
    elif flag.takes_value:
        parts.append("-x")
    if flag.help:
        parts.append(f"-d {_fish_quote(flag.help)}")
    return " ".join(parts)


def _fish_quote(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace("'", "\\'")
    return f"'{escaped}'"
