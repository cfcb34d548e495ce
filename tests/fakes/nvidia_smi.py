"""A fake nvidia-smi: compute policies and compute modes of GPUs that are made up.

Beside it lies `state/`: `calls` gets a line of JSON for each run, `gpus.json` holds what was set, `control.json` says
what goes wrong: {"nvidia-smi": {"hang": true, "status": 9, "say": "…", "unsupported": ["GPU-…"], "warn": true}}.
"""

# ruff: noqa: T201 - it answers by printing

import json
import os
import sys
import time

STATE = os.path.join(os.path.dirname(os.path.abspath(sys.argv[0])), "state")
SLICES = ("Default", "Short", "Medium", "Long")
MODES = {"DEFAULT": "Default", "EXCLUSIVE_PROCESS": "Exclusive_Process", "PROHIBITED": "Prohibited"}


def load(name):
    try:
        with open(os.path.join(STATE, name)) as stream:
            return json.load(stream)
    except FileNotFoundError:
        return {}


def save(name, value):
    path = os.path.join(STATE, name)
    with open(f"{path}.{os.getpid()}", "w") as stream:
        json.dump(value, stream)
    os.rename(stream.name, path)


def argument(name):
    return sys.argv[sys.argv.index(name) + 1] if name in sys.argv else None


def main():
    with open(os.path.join(STATE, "calls"), "a") as calls:
        calls.write(json.dumps({"argv": sys.argv[1:], "library_path": os.environ.get("LD_LIBRARY_PATH")}) + "\n")
    control = load("control.json").get("nvidia-smi", {})
    while control.get("hang"):
        time.sleep(60)
    if "say" in control:
        print(control["say"])
    if control.get("status"):
        return control["status"]
    return answer(control)


def answer(control):
    gpu = argument("-i")
    gpus = load("gpus.json")
    mine = gpus.setdefault(gpu, {"slice": 0, "mode": "DEFAULT"})
    if gpu in control.get("unsupported", ()):
        print("Setting is not supported for GPU 00000000:65:00.0.")
        print(
            "Treating as warning and moving on." if control.get("warn") else "Terminating early due to previous errors."
        )
        return 0 if control.get("warn") else 3
    if argument("--set-timeslice"):
        mine["slice"] = int(argument("--set-timeslice"))
    elif "--list" in sys.argv:
        print("+-------------------------------------+")
        print("| GPU compute policies:               |")
        print("| GPU     Name            Value       |")
        print("|=====================================|")
        print(f"|   0     Timeslice       {SLICES[mine['slice']]:12}|")
        print("+-------------------------------------+")
        return 0
    elif "--query-gpu=compute_mode" in sys.argv:
        print(MODES[mine["mode"]])
        return 0
    elif argument("-c"):
        mine["mode"] = argument("-c")
        print(f"Set compute mode to {argument('-c')} for GPU 00000000:65:00.0.")
    else:
        print("Invalid combination of input arguments. Please run 'nvidia-smi -h' for help.")
        return 2
    save("gpus.json", gpus)
    print("All done.")
    return 0


if __name__ == "__main__":
    sys.exit(main())
