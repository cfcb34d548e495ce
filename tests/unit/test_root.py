from __future__ import annotations

from pathlib import Path

import pytest

from driver.root import Root


@pytest.fixture
def root(tmp_path):
    (tmp_path / "usr/lib").mkdir(parents=True)
    (tmp_path / "usr/lib/real").write_text("")
    (tmp_path / "lib").symlink_to("usr/lib")
    (tmp_path / "absolute").symlink_to("/usr/lib")
    (tmp_path / "out").symlink_to("../../../../usr/lib/real")
    (tmp_path / "usr/lib/name").symlink_to("./real")
    (tmp_path / "loop").symlink_to("/circle")
    (tmp_path / "circle").symlink_to("loop")
    (tmp_path / "broken").symlink_to("nowhere")
    return Root(tmp_path, Path("/run/driver/"))


@pytest.mark.parametrize(
    ("inside", "resolved"),
    [
        ("/", "/"),
        ("/usr/lib/real", "/usr/lib/real"),
        ("/lib/real", "/usr/lib/real"),
        ("/absolute/name", "/usr/lib/real"),
        ("/usr/../lib/./name", "/usr/lib/real"),
        ("/out", "/usr/lib/real"),
        ("/loop", None),
        ("/loop/x", None),
        ("/broken", None),
        ("/usr/lib/real/x", None),
        ("/missing", None),
    ],
)
def test_links_are_followed_within_the_root(root, inside, resolved):
    assert root.resolve(inside) == resolved


def test_the_host_names_paths_its_own_way(root, tmp_path):
    assert root.host_path("/usr/lib") == "/run/driver/usr/lib"
    assert Root(tmp_path, Path("/")).host_path("/usr/lib") == "/usr/lib"
    assert Root(tmp_path).host_path("/usr/lib") == f"{tmp_path}/usr/lib"
    assert str(Root(tmp_path, Path("/"))) == "/"


def test_names_are_sorted_and_none_where_nothing_is(root):
    assert root.names("/absolute") == ["name", "real"]
    assert root.names("/missing") == []
    assert root.names("/usr/lib/real") == []
