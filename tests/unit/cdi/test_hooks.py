from __future__ import annotations

from pathlib import Path

import pytest

from driver.cdi.hooks import HookProgram, find_program, hooks_for, watched
from driver.cdi.libraries import find_driver_files
from driver.root import Root
from tests.unit.cdi.driver_root import VERSION, DriverRoot

ALL = b"\0create-symlinks\0enable-cuda-compat\0update-ldcache\0disable-device-node-modification\0"


@pytest.fixture
def node(tmp_path):
    return DriverRoot(tmp_path).install()


def hooks(node, host=Path("/")):
    root = Root(node.root, host)
    program = find_program(root)
    assert program is not None
    return hooks_for(program, find_driver_files(root, VERSION, machine="x86_64"))


def test_all_hooks(node):
    node.file("usr/bin/nvidia-cdi-hook", ALL)
    found = hooks(node)
    assert {(hook.name, hook.path, hook.args[0]) for hook in found} == {
        ("createContainer", "/usr/bin/nvidia-cdi-hook", "nvidia-cdi-hook")
    }
    assert [hook.args[1:] for hook in found] == [
        (
            "create-symlinks",
            "--link",
            "libcuda.so.1::/usr/lib64/libcuda.so",
            "--link",
            "libnvidia-opticalflow.so.1::/usr/lib64/libnvidia-opticalflow.so",
        ),
        ("enable-cuda-compat", f"--host-driver-version={VERSION}"),
        ("update-ldcache", "--folder", "/usr/lib64"),
        ("disable-device-node-modification",),
    ]


def test_the_toolkits_own_program_has_them_below_hook(node):
    node.file("usr/local/nvidia/toolkit/nvidia-ctk", ALL)
    hook = hooks(node, Path("/run/nvidia/driver"))[1]
    assert hook.path == "/run/nvidia/driver/usr/local/nvidia/toolkit/nvidia-ctk"
    assert hook.args == ("nvidia-ctk", "hook", "enable-cuda-compat", f"--host-driver-version={VERSION}")


def test_a_command_that_the_program_lacks_is_not_asked_for(node):
    node.file("usr/bin/nvidia-cdi-hook", b"create-symlinks update-ldcache")
    assert [hook.args[1] for hook in hooks(node)] == ["create-symlinks", "update-ldcache"]


def test_an_empty_program_knows_nothing(node):
    node.file("usr/bin/nvidia-cdi-hook")
    assert hooks(node) == ()


def test_the_graphics_library_gets_its_further_name(node):
    node.file("usr/bin/nvidia-cdi-hook", ALL)
    node.file(f"usr/lib64/libGLX_nvidia.so.{VERSION}")
    assert f"libGLX_nvidia.so.{VERSION}::/usr/lib64/libGLX_indirect.so.0" in hooks(node)[0].args


def test_no_program(node):
    assert find_program(Root(node.root, Path("/"))) is None


def test_the_program_is_on_the_host_where_the_driver_is_in_a_container(node):
    """As the GPU operator installs both; the agent sees the host's `/` elsewhere."""
    root = Root(node.root / "run/nvidia/driver", Path("/run/nvidia/driver"))
    assert find_program(root) is None
    node.file("usr/local/nvidia/toolkit/nvidia-cdi-hook", ALL)
    program = find_program(root)
    assert program is not None
    assert program.host_path == "/usr/local/nvidia/toolkit/nvidia-cdi-hook"
    assert program.knows("create-symlinks")
    assert not program.knows("unheard-of")
    assert node.root / "usr/local/nvidia/toolkit" in watched(root)


def test_the_hosts_root_is_not_guessed(tmp_path):
    assert Root(tmp_path / "driver-root", Path("/run/nvidia/driver")).of_host() is None
    assert Root(Path("/run/nvidia/driver")).of_host() is None
    assert Root(Path("/host"), Path("/")).of_host() is None


def test_a_configured_program_is_taken_as_it_is_where_it_cannot_be_seen(node):
    node.file("usr/bin/nvidia-cdi-hook", ALL)
    program = find_program(Root(node.root, Path("/run/nvidia/driver")), Path("/opt/toolkit/nvidia-cdi-hook"))
    assert program == HookProgram(host_path="/opt/toolkit/nvidia-cdi-hook", seen=None)
    assert program.knows("anything")


def test_a_configured_program_is_looked_into_where_the_hosts_root_is_seen(node):
    node.file("opt/toolkit/nvidia-cdi-hook", b"update-ldcache")
    program = find_program(Root(node.root, Path("/")), Path("/opt/toolkit/nvidia-cdi-hook"))
    assert program is not None
    assert program.knows("update-ldcache")
    assert not program.knows("create-symlinks")
