"""What a container runs. Pure, but for a look at which programs the host has."""

from __future__ import annotations

import shutil
from typing import Any

from driver.localcluster.containers.oci import PATH
from driver.localcluster.kubelet.environment import expand

_STAND_IN = """\
echo "The embedded cluster pulls no images, and this container ({image}) has no command: it only waits."
trap 'exit 0' TERM
while :; do sleep 3600 & wait $!; done
"""


def stands_in(container: dict[str, Any]) -> bool:
    """Say whether the container's program would come from its image, which is not there."""
    arguments = container.get("args") or ()
    if container.get("command"):
        return False
    return not arguments or shutil.which(arguments[0], path=PATH) is None


def command(container: dict[str, Any], variables: dict[str, str]) -> tuple[str, ...]:
    """Return the program and its arguments.

    Without a command the image's entry point would get the arguments. If these begin with a program of the host's, they
    are the command, as for images without an entry point (busybox); else something stands in that waits.
    """
    if stands_in(container):
        return "/bin/sh", "-c", _STAND_IN.format(image=container.get("image", "no image"))
    words = [*(container.get("command") or ()), *(container.get("args") or ())]
    return tuple(expand(word, variables) for word in words)
