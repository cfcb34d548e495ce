from __future__ import annotations

import json

import pytest
import yaml

from driver.cli import OK, main


def show(capsys, *arguments: str) -> str:
    assert main(["device-classes", "--node-name", "n1", *arguments]) == OK
    return str(capsys.readouterr().out)


def classes(capsys, *arguments: str) -> dict[str, str]:
    """Extended resources by class."""
    items = json.loads(show(capsys, *arguments, "-o", "json"))["items"]
    return {item["metadata"]["name"]: item["spec"].get("extendedResourceName", "") for item in items}


ALWAYS = {"gpu.nvidia.com": "nvidia.com/gpu", "mig.nvidia.com": ""}


@pytest.mark.parametrize(
    ("arguments", "profiles"),
    [
        (["--gpus", "l4"], []),
        (["--gpus", "h100:2"], []),
        (["--gpus", "h100@mig=1g.10gb*2+2g.20gb,h100@mig=1g.10gb"], ["1g.10gb", "2g.20gb"]),
        (["--gpus", "h100@mig=1g.10gb+me"], ["1g.10gb.me"]),
        (["--gpus", "a30@mig", "--dynamic-mig", "all"], ["1g.6gb", "1g.6gb.me", "2g.12gb", "2g.12gb.me", "4g.24gb"]),
        (["--gpus", "a30", "--all-profiles"], ["1g.6gb", "1g.6gb.me", "2g.12gb", "2g.12gb.me", "4g.24gb"]),
    ],
)
def test_classes_of_the_profiles_that_there_are(capsys, arguments, profiles):
    own = {f"mig-{profile}.nvidia.com": f"nvidia.com/mig-{profile}" for profile in profiles}
    assert classes(capsys, *arguments) == ALWAYS | own


def test_without_extended_resources(capsys):
    found = classes(capsys, "--gpus", "h100@mig=1g.10gb", "--no-extended-resources")
    assert found == {"gpu.nvidia.com": "", "mig.nvidia.com": "", "mig-1g.10gb.nvidia.com": ""}


def test_objects_as_yaml_and_a_table(capsys):
    items = list(yaml.safe_load_all(show(capsys, "--gpus", "h100@mig=1g.10gb", "-o", "yaml")))
    assert {item["kind"] for item in items} == {"DeviceClass"}
    lines = show(capsys, "--gpus", "h100@mig=1g.10gb").splitlines()
    assert lines[0].split() == ["CLASS", "EXTENDED", "RESOURCE", "SELECTOR"]
    assert lines[3].split()[:2] == ["mig-1g.10gb.nvidia.com", "nvidia.com/mig-1g.10gb"]
