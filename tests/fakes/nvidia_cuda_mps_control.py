"""A fake nvidia-cuda-mps-control: the daemon with -f, else the program that talks to it.

Beside it lies `state/`: `calls` gets a line of JSON for each run and each command, `control.json` says what goes wrong:
{"mps": {"start": "fail|hang|mute|die", "quit": "ignore", "term": "ignore", "refuse": true, "forget": true}}.
The command `server` starts a process that lives on, as an MPS server does.
"""

# ruff: noqa: T201 - it answers by printing

import errno
import json
import os
import signal
import socket
import subprocess
import sys
import time

STATE = os.path.join(os.path.dirname(os.path.abspath(sys.argv[0])), "state")
PIPE = os.environ.get("CUDA_MPS_PIPE_DIRECTORY", "/tmp/nvidia-mps")
ENV = ("CUDA_VISIBLE_DEVICES", "CUDA_MPS_PIPE_DIRECTORY", "CUDA_MPS_LOG_DIRECTORY")


def control():
    try:
        with open(os.path.join(STATE, "control.json")) as stream:
            return json.load(stream).get("mps", {})
    except FileNotFoundError:
        return {}


def record(**entry):
    try:
        with open(os.path.join(STATE, "calls"), "a") as calls:
            calls.write(json.dumps(entry) + "\n")
    except OSError as exc:
        if exc.errno != errno.EROFS:  # in a pod the driver's files are read-only
            raise


def daemon():
    wanted = control()
    record(
        daemon=sys.argv[1:],
        pid=os.getpid(),
        shm=os.stat("/dev/shm").st_ino,
        env={key: os.environ.get(key) for key in ENV},
    )
    log("Starting control daemon")
    if wanted.get("start") == "fail":
        log("An instance of this daemon is already running")
        sys.exit(1)
    if wanted.get("term") == "ignore":
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    while wanted.get("start") == "hang":
        time.sleep(60)
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    listener.bind(os.path.join(PIPE, "control"))
    listener.listen(8)
    state = {"percentage": "100.0", "limits": {}, "forget": wanted.get("forget")}
    while True:
        connection, _ = listener.accept()
        with connection:
            while wanted.get("start") == "mute":
                time.sleep(60)
            if wanted.get("start") == "die":
                os.kill(os.getpid(), signal.SIGSEGV)
            while command := connection.recv(4096).decode():
                connection.send((execute(command.split(), state, control()) or "\0").encode())


def execute(words, state, wanted):
    record(command=words, pid=os.getpid())
    log(f"Cmd:{' '.join(words)}")
    name, arguments = words[0], words[1:]
    if name == "quit":
        if wanted.get("quit") != "ignore":
            os._exit(0)
    elif name == "set_default_active_thread_percentage":
        state["percentage"] = "100.0" if state["forget"] else f"{float(arguments[0]):.1f}"
        return state["percentage"]
    elif name == "get_default_active_thread_percentage":
        return state["percentage"]
    elif name == "set_default_device_pinned_mem_limit":
        if wanted.get("refuse"):
            return f"Invalid device {arguments[0]}"
        state["limits"][arguments[0]] = arguments[1]
    elif name == "server":
        return str(subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"], start_new_session=True).pid)
    return ""


def log(line):
    with open(os.path.join(os.environ["CUDA_MPS_LOG_DIRECTORY"], "control.log"), "a") as stream:
        stream.write(line + "\n")


def client():
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    try:
        connection.connect(os.path.join(PIPE, "control"))
    except OSError:
        print("Cannot find MPS control daemon process")
        sys.exit(1)
    for line in sys.stdin:
        connection.send(line.strip().encode())
        answer = connection.recv(4096).decode().strip("\0")
        if answer:
            print(answer, flush=True)


if __name__ == "__main__":
    daemon() if "-f" in sys.argv else client()
