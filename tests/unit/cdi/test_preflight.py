from __future__ import annotations

from pathlib import Path

import pytest

from driver.cdi.preflight import check_runtime

CDI = Path("/var/run/cdi")
V2 = 'version = 2\n[plugins."io.containerd.grpc.v1.cri"]\n'
V3 = "version = 3\n[plugins.'io.containerd.cri.v1.runtime']\n"


@pytest.fixture
def containerd(tmp_path):
    path = tmp_path / "etc/containerd/config.toml"
    path.parent.mkdir(parents=True)
    return path


@pytest.fixture
def crio(tmp_path):
    path = tmp_path / "etc/crio/crio.conf"
    path.parent.mkdir(parents=True)
    return path


def messages(config, **kwargs):
    return [finding.message for finding in check_runtime(CDI, [config], **kwargs)]


@pytest.mark.parametrize(
    ("text", "runtime", "says"),
    [
        (V2 + "enable_cdi = false\n", "", ["enable_cdi is false"]),
        (V3 + "enable_cdi = false\n", "containerd://2.1.4", ["enable_cdi is false"]),
        (V2, "", ["containerd 1.7 has CDI off then"]),
        (V2, "containerd://1.7.27", ["containerd 1.7 has CDI off then"]),
        ("[plugins.cri]\n", "containerd://1.7.27", ["under [plugins.'cri']"]),
        (V2, "containerd://2.0.0", []),
        (V3, "", []),
        (V3, "containerd://2.1.4", []),
        (V2 + "enable_cdi = true\n", "containerd://1.7.27", []),
        ("", "containerd://2.1.4", []),
        (V3 + 'enable_cdi = "yes"\n', "", ["could not check", "'yes'"]),
        (V3 + 'cdi_spec_dirs = ["/etc/cdi"]\n', "", ["from /etc/cdi, not from /var/run/cdi"]),
        (V3 + "cdi_spec_dirs = []\n", "", ["from none"]),
        (V3 + 'cdi_spec_dirs = ["/etc/cdi", "/run/cdi/"]\n', "", []),
        (V3 + 'cdi_spec_dirs = "/run/cdi"\n', "", ["could not check"]),
        ("version = 9\n", "", ["could not check", "version 9"]),
        ("version = [3]\n", "", ["could not check", "version [3]"]),
        ("version = 1\n[plugins]\ncri = 1\n", "", ["could not check", "cri is no table"]),
        ("plugins = 1\nversion = 3\n", "", ["could not check", "plugins is no table"]),
        ("version = \n", "", ["could not check", "config.toml"]),
        ('imports = "x"\nversion = 3\n', "", ["could not check", "imports is no list"]),
        (V3, "containerd://1.6.33", ["containerd://1.6.33 has no CDI", "use 1.7 or later"]),
    ],
)
def test_C6_containerd(containerd, text, runtime, says):
    containerd.write_text(text)
    found = messages(containerd, runtime=runtime)
    assert len(found) == (1 if says else 0)
    assert all(part in found[0] for part in says)


def test_C6_the_message_says_what_to_change(containerd):
    containerd.write_text(V3 + "enable_cdi = false\n")
    assert messages(containerd) == [
        f"{containerd}: enable_cdi is false: set enable_cdi = true under [plugins.'io.containerd.cri.v1.runtime']"
        " in containerd's configuration and restart containerd"
    ]


@pytest.mark.parametrize("pattern", ["conf.d/*.toml", "/etc/containerd/conf.d/*.toml"])
def test_C6_an_imported_section_replaces_the_whole_section(containerd, pattern):
    containerd.write_text(f'imports = ["{pattern}"]\n{V3}enable_cdi = true\n')
    assert messages(containerd) == []
    imported = containerd.parent / "conf.d/10.toml"
    imported.parent.mkdir()
    imported.write_text(V3 + "enable_cdi = false\n")
    assert "enable_cdi is false" in messages(containerd)[0]
    (containerd.parent / "conf.d/20.toml").write_text(V3 + "sandbox = 1\n")
    assert messages(containerd) == []


def test_imports_in_a_circle_end(containerd):
    containerd.write_text(f'imports = ["config.toml"]\n{V3}')
    assert messages(containerd) == []


@pytest.mark.parametrize(
    ("main", "drop_in", "says"),
    [
        ("", None, []),
        ('[crio.runtime]\ncdi_spec_dirs = ["/etc/cdi"]\n', None, ["crio.conf: ", "not from /var/run/cdi"]),
        ("", '[crio.runtime]\ncdi_spec_dirs = ["/etc/cdi"]\n', ["10.conf: ", "under [crio.runtime]"]),
        ("[crio.runtime]\ncdi_spec_dirs = []\n", '[crio.runtime]\ncdi_spec_dirs = ["/run/cdi"]\n', []),
        (None, '[crio.runtime]\ncdi_spec_dirs = ["/etc/cdi"]\n', ["10.conf: "]),
        ("[crio]\nruntime = 1\n", None, ["could not check", "runtime is no table"]),
    ],
)
def test_C6_crio(crio, main, drop_in, says):
    if main is not None:
        crio.write_text(main)
    if drop_in is not None:
        (crio.parent / "crio.conf.d").mkdir()
        (crio.parent / "crio.conf.d/10.conf").write_text(drop_in)
    found = messages(crio)
    assert len(found) == (1 if says else 0)
    assert all(part in found[0] for part in says)


def test_only_the_runtime_in_use_counts(containerd, crio):
    containerd.write_text(V3)
    crio.write_text('[crio.runtime]\ncdi_spec_dirs = ["/etc/cdi"]\n')
    assert check_runtime(CDI, [containerd, crio], runtime="containerd://2.1.4") == ()
    assert len(check_runtime(CDI, [containerd, crio], runtime="cri-o://1.33.0")) == 1
    assert len(check_runtime(CDI, [containerd, crio])) == 1


@pytest.mark.parametrize(
    ("runtime", "says", "certain"),
    [
        ("", "could not check that the container runtime reads CDI files: none of", False),
        ("containerd://1.7.2", "CDI off unless told otherwise", True),
        ("containerd://2.0.1", "", True),
        ("cri-o://1.22.0", "use 1.23 or later", True),
        ("cri-o://1.30.0", "", True),
    ],
)
def test_no_configuration(tmp_path, runtime, says, certain):
    found = check_runtime(CDI, [tmp_path / "config.toml"], runtime=runtime)
    assert [finding.certain for finding in found] == ([certain] if says else [])
    assert not says or says in found[0].message


def test_a_pod_without_the_hosts_files_can_not_tell():
    config = Path("/no-such-directory/config.toml")
    (found,) = check_runtime(CDI, [config], runtime="containerd://1.7.2", in_pod=True)
    assert not found.certain
    assert "the host's configuration is not mounted" in found.message
    assert check_runtime(CDI, [config], runtime="containerd://2.0.1", in_pod=True) == ()
    mounted = Path("/proc/none/config.toml")  # any file system but the root's
    (found,) = check_runtime(CDI, [mounted], runtime="containerd://1.7.2", in_pod=True)
    assert found.certain


def test_an_unreadable_file_is_only_not_checked(tmp_path):
    (tmp_path / "config.toml").mkdir()
    found = check_runtime(CDI, [tmp_path / "config.toml"])
    assert [finding.certain for finding in found] == [False]
    (tmp_path / "binary.toml").write_bytes(b"\xff\xfe")
    assert not check_runtime(CDI, [tmp_path / "binary.toml"])[0].certain


def test_another_directory_of_ours_is_asked_for(containerd):
    containerd.write_text(V3)
    assert "not from /srv/cdi" in check_runtime(Path("/srv/cdi"), [containerd])[0].message
