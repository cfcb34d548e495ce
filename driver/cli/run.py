"""`gpu-dra run`: the agent."""

from __future__ import annotations

from typing import TYPE_CHECKING

from driver.settings import add_flags, load_settings

if TYPE_CHECKING:
    import argparse

DESCRIPTION = """\
Run the agent: find this node's GPUs, publish them as ResourceSlices, and prepare them for claims when the kubelet asks.

Each setting can be given in four ways, the later wins: its default, the YAML file that --config names (key node_name
for --node-name, and so on), the environment variable in brackets, the flag. Unknown ones are refused.
"""
EPILOG = """\
examples:
  gpu-dra run                                                  in a pod, for the node's GPUs
  gpu-dra run --driver-root /run/nvidia/driver                 with the driver in a container
  gpu-dra run --gpus h100:8 --kubeconfig ~/.kube/config \\
      --kubelet-root /tmp/kubelet --cdi-dir /tmp/cdi           with fake GPUs, for a kubelet elsewhere

durations: 10s, 500ms, 5m; a number without a unit is seconds.
SIGTERM ends the agent within 2 s; its slices stay, so that a restart is no outage. SIGHUP reads the GPUs again.
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add a flag for each setting."""
    parser.usage = "gpu-dra run [--config FILE] [--SETTING VALUE ...]"
    add_flags(parser)


def run(args: argparse.Namespace) -> int:
    """Run the agent until it is told to stop."""
    settings = load_settings(vars(args))
    from driver.agent import process  # grpc, aiohttp and the rest only now

    return process.run(settings)
