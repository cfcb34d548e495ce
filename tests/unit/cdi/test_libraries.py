from __future__ import annotations

from pathlib import Path

import pytest

from driver.cdi.libraries import find_driver_files, loaded_version
from driver.errors import DeviceNotReadyError
from driver.root import Root
from tests.unit.cdi.driver_root import VERSION, DriverRoot


@pytest.fixture
def node(tmp_path):
    return DriverRoot(tmp_path)


def find(node, loaded=VERSION, host=Path("/run/nvidia/driver")):
    return find_driver_files(Root(node.root, host), loaded, machine="x86_64")


def targets(files):
    return [mount.container_path for mount in files.mounts]


def test_everything_of_the_version_and_nothing_else(node):
    node.install()
    node.install("570.169", libraries=("libcuda.so", "libnvidia-ml.so"))
    node.file("usr/lib64/libother.so.1")
    node.file(f"usr/lib64/vdpau/libvdpau_nvidia.so.{VERSION}")
    node.file("usr/share/vulkan/icd.d/nvidia_icd.json")
    files = find(node)
    assert files.version == VERSION
    assert targets(files) == [
        f"/usr/lib64/libcuda.so.{VERSION}",
        f"/usr/lib64/libnvidia-ml.so.{VERSION}",
        f"/usr/lib64/libnvidia-opticalflow.so.{VERSION}",
        f"/usr/lib64/libnvidia-ptxjitcompiler.so.{VERSION}",
        f"/usr/lib64/vdpau/libvdpau_nvidia.so.{VERSION}",
        "/usr/bin/nvidia-smi",
        "/usr/bin/nvidia-cuda-mps-control",
        f"/lib/firmware/nvidia/{VERSION}/gsp_ga10x.bin",
        "/usr/share/vulkan/icd.d/nvidia_icd.json",
    ]
    assert files.folders == ("/usr/lib64", "/usr/lib64/vdpau")


def test_the_hosts_path_has_the_driver_root_and_the_containers_has_not(node):
    node.install()
    mount = find(node).mounts[0]
    assert mount.host_path == f"/run/nvidia/driver/usr/lib64/libcuda.so.{VERSION}"
    assert mount.container_path == f"/usr/lib64/libcuda.so.{VERSION}"
    assert mount.options == ("ro", "nosuid", "nodev", "rbind", "rprivate")


@pytest.mark.parametrize(
    "folder",
    [
        "usr/lib64",
        "usr/lib/x86_64-linux-gnu",
        "usr/lib/x86_64-linux-gnu/nvidia/current",
        "lib64",
        "lib/x86_64-linux-gnu",
        "usr/lib",
    ],
)
def test_every_library_directory(node, folder):
    node.install(folder=folder)
    assert find(node).folders == (f"/{folder}",)


def test_32_bit_libraries_are_not_taken_where_there_are_others(node):
    node.install()
    node.install(folder="usr/lib")
    assert find(node).folders == ("/usr/lib64",)


def test_one_directory_of_two_names_comes_once(node):
    node.install()
    node.link("lib64", "usr/lib64")
    assert find(node).folders == ("/usr/lib64",)


def test_a_library_behind_a_link_is_mounted_from_its_real_place(node):
    node.install(libraries=("libcuda.so",))
    node.file(f"opt/libnvidia-ml.so.{VERSION}")
    node.link(f"usr/lib64/libnvidia-ml.so.{VERSION}", f"/opt/libnvidia-ml.so.{VERSION}")
    mount = find(node).mounts[1]
    assert mount.host_path == f"/run/nvidia/driver/opt/libnvidia-ml.so.{VERSION}"
    assert mount.container_path == f"/usr/lib64/libnvidia-ml.so.{VERSION}"


def test_links_name_the_libraries_as_programs_open_them(node):
    node.install(libraries=("libcuda.so", "libnvidia-ml.so"))
    node.link("usr/lib64/libcuda.so", "libcuda.so.1")
    node.link("usr/lib64/libnvidia-ml.so", "libother.so")
    assert find(node).links == (
        ("/usr/lib64/libcuda.so", f"/usr/lib64/libcuda.so.{VERSION}"),
        ("/usr/lib64/libcuda.so.1", f"/usr/lib64/libcuda.so.{VERSION}"),
        ("/usr/lib64/libnvidia-ml.so.1", f"/usr/lib64/libnvidia-ml.so.{VERSION}"),
    )


def test_without_a_known_kernel_module_the_newest_is_taken(node):
    node.install("570.99")
    node.install("570.169", folder="usr/lib/x86_64-linux-gnu")
    assert find(node, loaded=None).version == "570.169"


def test_C2_no_libraries(node):
    with pytest.raises(DeviceNotReadyError, match=r"no GPU driver libraries .* under /run/nvidia/driver \(yet\)"):
        find(node)


def test_C2_libraries_of_another_version_than_the_kernel_module(node):
    node.install("570.169")
    with pytest.raises(DeviceNotReadyError, match=r"loaded kernel module is 580.105.08, .* only the libraries of 570"):
        find(node)


def test_C2_half_an_installation(node):
    node.install(libraries=("libnvidia-ml.so",))
    with pytest.raises(DeviceNotReadyError, match=r"lacks libcuda\.so\.580\.105\.08 \(yet\)"):
        find(node)


@pytest.mark.parametrize(
    ("text", "version"),
    [
        (
            "NVRM version: NVIDIA UNIX x86_64 Kernel Module  550.54.14  Thu Feb 22 2024\nGCC version: 12.2.0\n",
            "550.54.14",
        ),
        (
            "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  570.169  Release Build  (dvs)\n",
            "570.169",
        ),
        ("nothing of the kind 1.2.3\n", None),
        (None, None),
    ],
)
def test_loaded_version(node, text, version):
    if text is not None:
        (node.proc / "driver/nvidia").mkdir(parents=True)
        (node.proc / "driver/nvidia/version").write_text(text)
    assert loaded_version(node.proc) == version
