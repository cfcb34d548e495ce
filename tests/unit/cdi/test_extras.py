from __future__ import annotations

from pathlib import Path

import pytest

from driver.cdi.extras import Extras
from driver.errors import DeviceNotReadyError
from driver.root import Root

PRESENT = (
    "dev/nvidia-fs0",
    "dev/nvidia-fs1",
    "dev/nvidia0",
    "dev/gdrdrv",
    "dev/infiniband/rdma_cm",
    "dev/infiniband/uverbs0",
    "dev/infiniband/umad0",
    "dev/nvidia-caps-imex-channels/channel0",
    "etc/cufile.json",
    "run/udev/data/c1",
)


@pytest.fixture
def extras(tmp_path):
    for path in PRESENT:
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).touch()
    return Extras(Root(tmp_path, Path("/")), Root(tmp_path, Path("/")))


@pytest.mark.parametrize(
    ("switches", "nodes", "mounts"),
    [
        ((), [], []),
        (("gds",), ["/dev/nvidia-fs0", "/dev/nvidia-fs1"], ["/etc/cufile.json", "/run/udev"]),
        (("mofed",), ["/dev/infiniband/uverbs0", "/dev/infiniband/rdma_cm"], []),
        (("gdrcopy",), ["/dev/gdrdrv"], []),
        (("mofed", "gdrcopy"), ["/dev/gdrdrv", "/dev/infiniband/uverbs0", "/dev/infiniband/rdma_cm"], []),
    ],
)
def test_what_each_switch_adds(extras, switches, nodes, mounts):
    found = extras.find(switches)
    assert [(node.path, node.host_path) for node in found.device_nodes] == [(path, path) for path in nodes]
    assert [(one.container_path, one.host_path) for one in found.mounts] == [(path, path) for path in mounts]


def test_an_imex_channel(extras):
    (node,) = extras.find((), (0,)).device_nodes
    assert node.path == "/dev/nvidia-caps-imex-channels/channel0"


def test_what_is_not_there_is_left_out(tmp_path):
    extras = Extras(Root(tmp_path), Root(tmp_path))
    assert not extras.find(("gds", "mofed", "gdrcopy"), (0,))


def test_a_required_channel_that_is_not_there_is_named(tmp_path):
    with pytest.raises(DeviceNotReadyError, match=r"IMEX channel 0 is required .*channel0 is not there"):
        Extras(Root(tmp_path), Root(tmp_path)).find((), (0,), required=True)
