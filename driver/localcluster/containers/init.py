"""The first thing that runs in a container: it builds what the bundle's `config.json` says, then becomes its program.

A small runc: the bundle is an OCI runtime bundle, the hooks get the OCI state on stdin. What fails is told through the
status pipe, which closes by itself when the program starts. Run as `init.main([mode, bundle, id, status fd])`, by
an interpreter without site packages; it imports nothing that is slow.

Modes: `root` and `user` (namespace) build a root file system of the container's own; `plain`, where neither is
allowed, puts the mounted programs and libraries into the search paths of a process that sees the host's files.
"""

from __future__ import annotations

import json
import os
import signal
from typing import Any

from driver.localcluster.containers import linux, rootfs

PREFIX = (
    "failed to create shim task: OCI runtime create failed: runc create failed: "
    "unable to start container process: error during container init: "
)


def main(arguments: list[str]) -> None:
    """Become the container's program, or tell why not and exit."""
    mode, bundle, name, status = arguments
    handle = int(status)
    os.set_inheritable(handle, False)
    try:
        with open(f"{bundle}/config.json", encoding="utf-8") as file:
            config = json.load(file)
        _run(mode, bundle, name, config)
    except Exception as exc:  # whatever it is: the parent waits for the reason
        text = f"{exc.filename}: {rootfs.go_text(exc)}" if isinstance(exc, OSError) else str(exc)
        os.write(handle, f"{PREFIX}{text or type(exc).__name__}".encode(errors="replace"))
    os._exit(128)


def enter(arguments: list[str]) -> None:
    """Become a command in a container that runs: `enter([mode, pid, bundle, program, argument…])`."""
    mode, pid, bundle, *command = arguments
    try:
        with open(f"{bundle}/config.json", encoding="utf-8") as file:
            config = json.load(file)
        process = config["process"]
        if mode == "plain":
            _enter_plain(config)
        else:
            rootfs.join(pid, user_namespace=mode == "user")
        os.chdir(process.get("cwd") or "/")
        if os.isatty(0):
            _own_terminal()
        _become(process["user"])
        _execute(command, dict(item.partition("=")[::2] for item in process["env"]))
    except (OSError, rootfs.SetupError) as exc:
        os.write(2, f"OCI runtime exec failed: exec failed: unable to start container process: {exc}\n".encode())
        os._exit(126)


def _own_terminal() -> None:
    """Make the input this session's terminal. Not before the exec: a parent with threads must run nothing in a fork."""
    import fcntl
    import termios

    fcntl.ioctl(0, termios.TIOCSCTTY, 0)


def _run(mode: str, bundle: str, name: str, config: dict[str, Any]) -> None:
    hooks, process = config.get("hooks", {}), config["process"]
    state = {"ociVersion": config["ociVersion"], "id": name, "status": "creating", "pid": os.getpid(), "bundle": bundle}
    for stage in ("prestart", "createRuntime"):
        _run_hooks(hooks.get(stage, []), state)
    root = _enter_plain(config) if mode == "plain" else _enter_namespaces(mode, config)
    _run_hooks(hooks.get("createContainer", []), state)
    if mode != "plain":
        os.chroot(root)
    _enter_directory(process.get("cwd") or "/")
    _run_hooks(hooks.get("startContainer", []), state | {"status": "created"})
    _become(process["user"])
    linux.die_with_parent(signal.SIGKILL)
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)  # which Python ignores, and exec would keep it so
    _execute(process["args"], dict(item.partition("=")[::2] for item in process["env"]))


def _enter_namespaces(mode: str, config: dict[str, Any]) -> str:
    rootfs.separate(mode == "user")
    linux.set_hostname(config["hostname"])
    base = os.path.dirname(config["root"]["path"])
    return rootfs.build(base, config["mounts"], config["linux"]["devices"])


def _enter_plain(config: dict[str, Any]) -> str:
    """Link what would be mounted below the root, and prepend the directories that got programs or libraries."""
    root: str = config["root"]["path"]
    found: dict[str, list[str]] = {}
    os.makedirs(root, exist_ok=True)
    for mount in config["mounts"]:
        source, target = mount["source"], mount["destination"]
        try:
            os.stat(source)
        except OSError as exc:
            text = f'error mounting "{source}" to rootfs at "{target}": stat {source}: {rootfs.go_text(exc)}'
            raise rootfs.SetupError(text) from exc
        os.makedirs(os.path.dirname(root + target), exist_ok=True)
        if not os.path.lexists(root + target):
            os.symlink(source, root + target)
        if not os.path.isdir(source):
            variable = "LD_LIBRARY_PATH" if ".so" in os.path.basename(target) else "PATH"
            found.setdefault(variable, []).append(os.path.dirname(root + target))
    environment = dict(item.partition("=")[::2] for item in config["process"]["env"])
    for variable, directories in found.items():
        old = environment.get(variable)
        environment[variable] = ":".join([*dict.fromkeys(directories), *([old] if old else [])])
    config["process"]["env"] = [f"{name}={value}" for name, value in environment.items()]
    return root


def _run_hooks(hooks: list[dict[str, Any]], state: dict[str, Any]) -> None:
    for number, hook in enumerate(hooks):
        _run_hook(f"error running hook #{number}: ", hook, state)


def _run_hook(failed: str, hook: dict[str, Any], state: dict[str, Any]) -> None:
    import subprocess  # slow, and few containers have hooks

    environment = dict(item.partition("=")[::2] for item in hook.get("env", []))
    arguments = hook.get("args") or [hook["path"]]
    timeout = hook.get("timeout")
    try:
        done = subprocess.run(  # noqa: S603 (running hooks is the point)
            arguments,
            executable=hook["path"],
            env=environment,
            input=json.dumps(state),
            capture_output=True,
            text=True,
            timeout=timeout,
            check=False,
        )
    except OSError as exc:
        raise rootfs.SetupError(f"{failed}fork/exec {hook['path']}: {rootfs.go_text(exc)}") from exc
    except subprocess.TimeoutExpired as exc:
        raise rootfs.SetupError(f"{failed}hook ran past specified timeout of {timeout}s") from exc
    if done.returncode:
        status = f"exit status {done.returncode}" if done.returncode > 0 else f"signal: {-done.returncode}"
        output = f"stdout: {done.stdout}, stderr: {done.stderr}"
        raise rootfs.SetupError(f"{failed}error running hook: {status}, {output}")


def _enter_directory(path: str) -> None:
    try:
        os.makedirs(path, 0o755, exist_ok=True)
        os.chdir(path)
    except OSError as exc:
        raise rootfs.SetupError(f"mkdir {path}: {rootfs.go_text(exc)}") from exc


def _become(user: dict[str, Any]) -> None:
    """Take the container's groups and user; an ordinary user can't, and stays who he is."""
    try:
        os.setgroups([user["gid"], *user.get("additionalGids", [])])
        os.setgid(user["gid"])
        os.setuid(user["uid"])
    except OSError:
        pass


def _execute(arguments: list[str], environment: dict[str, str]) -> None:
    program = arguments[0]
    if "/" in program:
        candidates = [program]
    else:
        candidates = [f"{directory}/{program}" for directory in environment.get("PATH", "").split(":") if directory]
    for path in candidates:
        if "/" not in program and not os.access(path, os.X_OK):
            continue
        try:
            os.execve(path, arguments, environment)  # noqa: S606 (nor is a shell wanted)
        except OSError as exc:
            raise rootfs.SetupError(f'exec: "{program}": {_exec_text(path, exc)}') from exc
    raise rootfs.SetupError(f'exec: "{program}": executable file not found in $PATH')


def _exec_text(path: str, exc: OSError) -> str:
    return f"stat {path}: {rootfs.go_text(exc)}" if isinstance(exc, FileNotFoundError) else rootfs.go_text(exc)
