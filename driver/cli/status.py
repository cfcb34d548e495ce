"""`gpu-dra status`: this node's GPUs, who has them, how they are, and what they do."""

from __future__ import annotations

from typing import TYPE_CHECKING

from driver.cli import output
from driver.settings import add_flags, load_settings

if TYPE_CHECKING:
    import argparse

DESCRIPTION = """\
Show the GPUs and MIG devices of this node: who offers them, which pod and claim hold them and since when, their health
with its reason, and their use. It asks the agent on this node, which answers root only.
"""
EPILOG = """\
examples:
  gpu-dra status                                                on the node, as root
  kubectl exec -n gpu-dra daemonset/gpu-dra -- gpu-dra status   from elsewhere (on a node that kubectl picks)
  gpu-dra status -o json | jq '.gpus[] | select(.health.healthy | not)'

exit status: 0 shown; 1 no agent answers; 2 wrong usage.
"""

SETTINGS = ("node_name", "kubelet_root", "state_dir")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's arguments."""
    output.add_format(parser)
    add_flags(parser, SETTINGS)


def run(args: argparse.Namespace) -> int:
    """Show the status once."""
    from driver.cli.agent_socket import read_status
    from driver.cli.status_screen import render

    status = read_status(load_settings(vars(args)))
    if args.output == "table":
        print("\n".join(render(status)))
    else:
        output.print_value(args.output, status)
    return 0
