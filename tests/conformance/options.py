"""What the suite can be told on pytest's command line."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import pytest

KUBERNETES = "1.36"
GPUS = "h100:6,l4:2"
IMAGE = "busybox"

ABOUT = """\
Says whether the driver works in a cluster. Without --kubeconfig the cluster is an embedded one: no prerequisites, all
cases. With it, any cluster on which the driver runs, or on whose node --driver process starts it; what only an embedded
cluster can do is then skipped, with the reason. Every run has a namespace of its own, which it deletes at the end, so
that runs may overlap. JUnit XML: --junitxml FILE.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """The options of one run. `patience` is in seconds; 0: 30 on the embedded cluster, 180 on others."""

    kubeconfig: Path | None = None
    context: str | None = None
    driver: str = "installed"
    node: str = ""
    kubelet_root: Path = Path("/var/lib/kubelet")
    cdi_dir: Path = Path("/var/run/cdi")
    gpus: str = GPUS
    image: str = IMAGE
    kubernetes: str = KUBERNETES
    patience: float = 0.0
    disruptive: bool = False


def add(parser: pytest.Parser) -> None:
    """Add the options to pytest's."""
    group = parser.getgroup("conformance", ABOUT)
    for flag, kind, default, text in _OPTIONS:
        if kind is bool:
            group.addoption(flag, action="store_true", default=default, help=text)
        else:
            choices = ("installed", "process") if flag == "--driver" else None
            group.addoption(flag, type=kind, default=default, help=text, choices=choices)


def read(config: pytest.Config) -> Options:
    """Return the options of this run.

    :raises pytest.UsageError: they don't go together.
    """
    names = [flag.removeprefix("--").replace("-", "_") for flag, *_ in _OPTIONS]
    default = Options()
    chosen = Options(**{name: config.getoption(name, getattr(default, name)) for name in names})
    if chosen.kubeconfig is None and (chosen.driver == "process" or chosen.context):
        raise pytest.UsageError("--driver process and --context need --kubeconfig (the embedded cluster has its own)")
    if chosen.driver == "process" and not chosen.node:
        raise pytest.UsageError("--driver process needs --node, the name of the node that this machine is")
    return chosen


_OPTIONS: tuple[tuple[str, type, object, str], ...] = (
    ("--kubeconfig", Path, None, "run against this cluster instead of an embedded one"),
    ("--context", str, None, "context of the kubeconfig (default: its current one)"),
    (
        "--driver",
        str,
        "installed",
        "installed: the driver runs in the cluster already; process: start it here, as the node --node, with the GPUs "
        "of --gpus, its sockets below --kubelet-root and CDI files in --cdi-dir (needs the rights to write there)",
    ),
    ("--node", str, "", "for --driver process: the name of the node that this machine is"),
    ("--kubelet-root", Path, Path("/var/lib/kubelet"), "for --driver process (default: /var/lib/kubelet)"),
    ("--cdi-dir", Path, Path("/var/run/cdi"), "for --driver process (default: /var/run/cdi)"),
    ("--gpus", str, GPUS, f"fake GPUs of the embedded cluster's node and of --driver process (default: {GPUS})"),
    (
        "--image",
        str,
        IMAGE,
        "image of all containers; it needs sh, env, grep and df, and with real GPUs a C library on which nvidia-smi "
        f"runs, such as ubuntu:24.04 (default: {IMAGE})",
    ),
    ("--kubernetes", str, KUBERNETES, f"version that the embedded cluster behaves as (default: {KUBERNETES})"),
    ("--patience", float, 0.0, "seconds until an expected event is given up (default: 30 embedded, else 180)"),
    (
        "--disruptive",
        bool,
        False,
        "allow on a cluster of yours what others on it notice: deleting the driver's ResourceSlices, tainting a node",
    ),
)
