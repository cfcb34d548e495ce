"""`gpu-dra demo`: the main job, seen. An embedded cluster, the unmodified agent as a process, pods with claims."""

from __future__ import annotations

import argparse
import asyncio
import shlex
import shutil
import signal
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from driver.localcluster.demo.screen import Screen
from driver.localcluster.demo.story import ArgumentsError, Story, StoryError

if TYPE_CHECKING:
    from collections.abc import Sequence

EPILOG = """\
examples:
  gpu-dra demo                              eight H100s on an NVSwitch
  gpu-dra demo --gpus a100-80:4,l4:2        another node; `gpu-dra inventory --help` says what there is
  gpu-dra demo --keep                       leave the cluster up, to use with kubectl

exit status: 0 if everything held, 1 if something did not, 2 for bad arguments.
"""


def parser() -> argparse.ArgumentParser:
    """Return the command line's parser."""
    made = argparse.ArgumentParser(
        prog="gpu-dra demo",
        description="Try the driver without a cluster or a GPU.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    made.add_argument("--gpus", default="h100:8", metavar="SPEC", help="the node's fake GPUs (default: h100:8)")
    made.add_argument("--keep", action="store_true", help="leave the cluster up until Ctrl-C, and print its KUBECONFIG")
    made.add_argument("--kubernetes", default="1.36", metavar="VERSION", help="version to behave as (default: 1.36)")
    return made


def main(arguments: Sequence[str]) -> int:
    """Run the demo; return the exit status."""
    options = parser().parse_args(arguments)
    screen = Screen(sys.stdout)
    # Unix sockets need a short path, so it is not below whatever TMPDIR says.
    with tempfile.TemporaryDirectory(prefix="gd", dir="/tmp") as directory:
        try:
            asyncio.run(_run(Path(directory), options, screen))
        except ArgumentsError as exc:
            sys.stderr.write(f"gpu-dra demo: {exc}\n")
            return 2
        except StoryError as exc:
            screen.failed(str(exc))
        except KeyboardInterrupt:
            screen.failed("interrupted")
    return screen.close()


async def _run(root: Path, options: argparse.Namespace, screen: Screen) -> None:
    stop = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):  # else the agent would be left alone
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    async with Story(root, screen, gpus=options.gpus, kubernetes=options.kubernetes, stop=stop).running() as story:
        await story.tell()
        if options.keep:
            _invite(story, screen)
            await stop.wait()
            stop.clear()
        await story.clean_up()


def _tools() -> str:
    """Return a line that puts `gpu-dra` on the path where it is not: `hack/demo` keeps it in a virtual environment."""
    directory = Path(sys.executable).parent
    found = shutil.which("gpu-dra") or not (directory / "gpu-dra").exists()
    return "" if found else f"\nexport PATH={shlex.quote(str(directory))}:$PATH"


def _invite(story: Story, screen: Screen) -> None:
    screen.heading("The cluster stays up. In another terminal:")
    screen.text(f"export KUBECONFIG={story.kubeconfig}{_tools()}\nkubectl get resourceslices,resourceclaims,pods")
    agent = f"--kubelet-root {story.kubelet_root}"
    screen.text(
        f"gpu-dra top {agent}   # who has what, live\n"
        f"gpu-dra fault inject gpu-0 xid=79 {agent}   # break a GPU\n"
        f"gpu-dra fault recover gpu-0 {agent}   # mend it"
    )
    screen.text("Ctrl-C deletes all of it.")
