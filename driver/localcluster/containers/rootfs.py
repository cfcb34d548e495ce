"""A container's root file system: the host's files below an overlay that forgets, and the container's mounts on it.

No image is pulled: what the host has installed is what the container sees. Writes go to a tmpfs that ends with the
container. Runs in the container's init, in namespaces of its own; it imports nothing that is slow.
"""

from __future__ import annotations

import os
import stat
from typing import Any

from driver.localcluster.containers import linux

_FLAGS = {
    "ro": linux.MS_RDONLY,
    "nosuid": linux.MS_NOSUID,
    "nodev": linux.MS_NODEV,
    "noexec": linux.MS_NOEXEC,
    "noatime": linux.MS_NOATIME,
    "nodiratime": linux.MS_NODIRATIME,
    "relatime": linux.MS_RELATIME,
    "bind": linux.MS_BIND,
    "rbind": linux.MS_BIND | linux.MS_REC,
}
_IGNORED = {"rw", "suid", "dev", "exec", "private", "rprivate", "slave", "rslave", "shared", "rshared", "defaults"}
_OWN = ("/dev", "/proc", "/sys", "/run", "/tmp")  # noqa: S108 (the container's own; names of mount points)
_NODES = ("null", "zero", "full", "random", "urandom", "tty")
_LINKS = {"fd": "/proc/self/fd", "stdin": "fd/0", "stdout": "fd/1", "stderr": "fd/2", "ptmx": "pts/ptmx"}


class SetupError(Exception):
    """The root file system can't be made; the text is runc's."""


def separate(user_namespace: bool) -> None:
    """Enter new mount and host name namespaces, as root of an own user namespace if `user_namespace`.

    :raises OSError: the kernel, or its policy, does not allow it.
    """
    uid, gid = os.getuid(), os.getgid()
    linux.unshare(linux.CLONE_NEWNS | linux.CLONE_NEWUTS | (linux.CLONE_NEWUSER if user_namespace else 0))
    if user_namespace:
        for name, text in (("setgroups", "deny"), ("uid_map", f"0 {uid} 1"), ("gid_map", f"0 {gid} 1")):
            _write(f"/proc/self/{name}", text)
    linux.mount("none", "/", flags=linux.MS_REC | linux.MS_PRIVATE)


def join(pid: str, *, user_namespace: bool) -> None:
    """Enter the namespaces and the root of a process.

    :raises OSError: it is gone, or not ours.
    """
    names = ("user", "uts", "mnt") if user_namespace else ("uts", "mnt")
    handles = [os.open(f"/proc/{pid}/ns/{name}", os.O_RDONLY) for name in names]
    root = os.open(f"/proc/{pid}/root", os.O_RDONLY | os.O_DIRECTORY)
    for handle in handles:
        linux.setns(handle)
    os.fchdir(root)
    os.chroot(".")


def build(base: str, mounts: list[dict[str, Any]], devices: list[dict[str, Any]]) -> str:
    """Build the root below the directory `base` and return its path.

    :raises SetupError: a mount or device of the container can't be made.
    :raises OSError: the base can't be made.
    """
    linux.mount("tmpfs", base, "tmpfs", linux.MS_NOSUID, "mode=0755")
    missing = [mount for mount in mounts if not os.path.lexists(os.path.realpath(mount["destination"]))]
    host = _Host(base, [os.path.realpath(mount["destination"]) for mount in missing])
    for mount in missing:
        _mount_point(host.upper, mount)
    host.show("/")
    root = host.root
    for name in ("proc", "sys"):
        linux.mount(f"/{name}", f"{root}/{name}", flags=linux.MS_BIND | linux.MS_REC)
    _own_devices(root)
    for mount in mounts:
        _mount(root, mount)
    for device in devices:
        _device(root, device)
    return root


class _Host:
    """The host's files below `root`: in one overlay if the kernel allows it, else in as many as it takes.

    In a user namespace a directory with other file systems mounted below can't be the overlay's lower layer: then its
    entries are shown one by one. What needs no new mount point may also be bound as it is.
    """

    def __init__(self, base: str, new: list[str]) -> None:
        self.upper, self.root = f"{base}/upper", f"{base}/root"
        self._work, self._count, self._new = f"{base}/work", 0, new
        for path in (self.upper, self.root, self._work):
            os.mkdir(path, 0o755)

    def show(self, path: str) -> None:
        """Make the host's `path` visible; what may not be entered, such as another user's `/root`, is an empty one."""
        target = self.root + path
        if os.path.islink(path):
            os.symlink(os.readlink(path), target)
        elif not os.path.isdir(path):
            _touch(target, False)
            linux.mount(path, target, flags=linux.MS_BIND)
        elif path not in _OWN and os.access(path, os.X_OK):
            self._show_directory(path, target)
        else:
            _copy_directory(path, target)

    def _show_directory(self, path: str, target: str) -> None:
        if path != "/":
            _copy_directory(path, target)
        try:
            self._overlay(path, target)
        except OSError:
            if path != "/" and not any(_below(point, [path]) for point in self._new):
                linux.mount(path, target, flags=linux.MS_BIND | linux.MS_REC)
                return
            for name in sorted({*os.listdir(path), *_entries(self.upper + path)}):
                self._show_entry(path.rstrip("/") + "/" + name)
        else:
            _host_mounts(self.root, path, self._new)

    def _show_entry(self, path: str) -> None:
        if os.path.lexists(path):
            self.show(path)
        else:
            _touch(self.root + path, os.path.isdir(self.upper + path))

    def _overlay(self, path: str, target: str) -> None:
        self._count += 1
        upper, work = self.upper + path, f"{self._work}/{self._count}"
        if not os.path.isdir(upper):
            os.makedirs(os.path.dirname(upper), exist_ok=True)
            _copy_directory(path, upper)
        os.mkdir(work, 0o755)
        linux.mount("overlay", target, "overlay", data=f"lowerdir={path},upperdir={upper},workdir={work}")


def _entries(path: str) -> list[str]:
    return os.listdir(path) if os.path.isdir(path) else []


def _mount_point(upper: str, mount: dict[str, Any]) -> None:
    """Make a mount point that the host lacks in the overlay's upper layer, so that the host is left alone.

    Its directories are copies of the host's, as they hide those.
    """
    target = os.path.realpath(mount["destination"])
    if target.startswith(tuple(f"{own}/" for own in _OWN[:3])):
        return
    path = ""
    for part in target.strip("/").split("/")[:-1]:
        path = f"{path}/{part}"
        if not os.path.isdir(upper + path):
            _copy_directory(path, upper + path)
    _touch(upper + target, os.path.isdir(mount["source"]))


def _copy_directory(original: str, copy: str) -> None:
    os.mkdir(copy, 0o755)
    try:
        info = os.stat(original)
        os.chmod(copy, stat.S_IMODE(info.st_mode))
        os.chown(copy, info.st_uid, info.st_gid)
    except OSError:
        pass  # the host has none, or an owner that this user namespace can't name


def _touch(path: str, directory: bool) -> None:
    if os.path.lexists(path):
        return
    if directory:
        os.makedirs(path, 0o755)
    else:
        os.close(os.open(path, os.O_CREAT | os.O_WRONLY, 0o644))


def _host_mounts(root: str, top: str, new: list[str]) -> None:
    """Bring the file systems along that the host has mounted below `top`, outermost first.

    One in which a mount point would have to be made stays out: the host's files are not the container's to change.
    """
    with open("/proc/self/mountinfo", encoding="utf-8") as lines:
        points = {line.split()[4].replace("\\040", " ") for line in lines} - {top}
    done: list[str] = []
    for point in sorted(points):
        if top != "/" and not _below(point, [top]):
            continue
        if _below(point, [*_OWN, *done]) or _below(root, [point]) or any(_below(path, [point]) for path in new):
            continue
        if os.path.lexists(root + point):
            linux.mount(point, root + point, flags=linux.MS_BIND | linux.MS_REC)
            done.append(point)


def _below(path: str, parents: list[str]) -> bool:
    return any(path == parent or path.startswith(f"{parent}/") for parent in parents)


def _own_devices(root: str) -> None:
    dev = f"{root}/dev"
    linux.mount("tmpfs", dev, "tmpfs", linux.MS_NOSUID, "mode=0755")
    for name in _NODES:
        info = os.stat(f"/dev/{name}")
        _node(f"{dev}/{name}", info.st_mode, info.st_rdev, f"/dev/{name}")
    for name, target in _LINKS.items():
        os.symlink(target, f"{dev}/{name}")
    for name in ("pts", "shm"):
        os.mkdir(f"{dev}/{name}", 0o755)
    os.chmod(f"{dev}/shm", 0o1777)  # noqa: S103 (as everywhere)
    if os.path.isdir("/dev/pts"):
        linux.mount("/dev/pts", f"{dev}/pts", flags=linux.MS_BIND | linux.MS_REC)


def _mount(root: str, mount: dict[str, Any]) -> None:
    source, target, kind = mount["source"], mount["destination"], mount.get("type", "")
    options = mount.get("options", [])
    flags = 0
    for option in options:
        flags |= _FLAGS.get(option, 0)
    data = ",".join(option for option in options if option not in _FLAGS and option not in _IGNORED)
    failed = f'error mounting "{source}" to rootfs at "{target}": '
    try:
        if flags & linux.MS_BIND:
            os.stat(source)
    except OSError as exc:
        raise SetupError(f"{failed}stat {source}: {go_text(exc)}") from exc
    try:
        path = root + os.path.realpath(target)
        os.makedirs(os.path.dirname(path), 0o755, exist_ok=True)
        _touch(path, os.path.isdir(source) or not flags & linux.MS_BIND)
        _do_mount(source, path, "" if kind == "none" else kind, flags, data)
    except OSError as exc:
        raise SetupError(f"{failed}{go_text(exc)}") from exc


def _do_mount(source: str, path: str, kind: str, flags: int, data: str) -> None:
    if not flags & linux.MS_BIND:
        linux.mount(source, path, kind, flags, data)
        return
    linux.mount(source, path, flags=flags & (linux.MS_BIND | linux.MS_REC))
    more = flags & ~(linux.MS_BIND | linux.MS_REC)
    if not more:
        return
    try:
        linux.mount("none", path, flags=linux.MS_REMOUNT | linux.MS_BIND | more)
    except PermissionError:  # flags of the source that an own user namespace may not clear
        kept = os.statvfs(path).f_flag & 0xF
        linux.mount("none", path, flags=linux.MS_REMOUNT | linux.MS_BIND | more | kept)


def _device(root: str, device: dict[str, Any]) -> None:
    path = root + device["path"]
    os.makedirs(os.path.dirname(path), 0o755, exist_ok=True)
    if os.path.lexists(path):
        os.unlink(path)
    kinds = {"c": stat.S_IFCHR, "u": stat.S_IFCHR, "b": stat.S_IFBLK, "p": stat.S_IFIFO}
    mode = kinds[device["type"]] | device.get("fileMode", 0o666)
    _node(path, mode, os.makedev(device.get("major", 0), device.get("minor", 0)), device["hostPath"])


def _node(path: str, mode: int, number: int, host: str) -> None:
    """Make a device node; without the right to, show the host's; where it has none either, an empty file."""
    try:
        os.mknod(path, mode, number)
        os.chmod(path, stat.S_IMODE(mode))
    except OSError:
        _touch(path, False)
        if os.path.exists(host):
            linux.mount(host, path, flags=linux.MS_BIND)


def _write(path: str, text: str) -> None:
    with open(path, "w", encoding="utf-8") as file:
        file.write(text)


def go_text(exc: OSError) -> str:
    """Return the error's text as Go writes it: in lower case."""
    text = exc.strerror or str(exc)
    return text[:1].lower() + text[1:]
