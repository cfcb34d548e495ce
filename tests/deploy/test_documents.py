"""What the documents name is there: settings, overlays, components, Events, messages, files."""

from __future__ import annotations

import re
from functools import cache

import pytest

from driver.settings import load_settings
from driver.settings.options import ENV_PREFIX
from tests.deploy.manifests import DEPLOY, ROOT

DOCUMENTS = [ROOT / "README.md", *sorted(DEPLOY.glob("*.md"))]
FOR_CONTAINERS = re.compile(r"GPU_DRA_MEMORY_LIMIT_\w*")


@cache
def sources() -> str:
    return "\n".join(path.read_text() for path in sorted((ROOT / "driver").rglob("*.py")))


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: path.name)
def test_settings_that_are_named_are_ones(path):
    named = set(re.findall(r"GPU_DRA_[A-Z_]+", path.read_text()))
    known = {f"{ENV_PREFIX}{name.upper()}" for name in type(load_settings()).__dataclass_fields__}
    assert {name for name in named - known if not FOR_CONTAINERS.fullmatch(name)} == set()


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: path.name)
def test_files_that_are_named_are_there(path):
    text = path.read_text()
    links = {path.parent / target for target in re.findall(r"\]\(([^):#]+)\)", text)}
    named = {DEPLOY / name for name in re.findall(r"\b(?:overlays|components)/[a-z0-9-]+", text)}
    assert {str(file) for file in links | named if not file.exists()} == set()


def test_the_readme_has_every_overlay_and_component():
    text = (DEPLOY / "README.md").read_text()
    for folder in ("overlays", "components"):
        for path in (DEPLOY / folder).iterdir():
            assert f"| `{folder}/{path.name}` |" in text


def test_events_are_ones_that_the_agent_emits():
    kubelets = {"FailedPrepareDynamicResources"}
    named = set(re.findall(r"Event `(\w+)`", (DEPLOY / "OPERATING.md").read_text())) - kubelets
    assert named
    assert {reason for reason in named if f'"{reason}"' not in sources()} == set()


@pytest.mark.parametrize(
    "message",
    [
        "is not below the driver root",
        "let this process see /dev/nvidiactl",
        "the kubelet has not registered the driver yet",
        "the service account's token names no node",
        "CAP_SYS_ADMIN",
    ],
)
def test_messages_are_ones_that_people_see(message):
    assert message in (DEPLOY / "OPERATING.md").read_text()
    assert message in sources() + (DEPLOY / "base/admission.yaml").read_text()
