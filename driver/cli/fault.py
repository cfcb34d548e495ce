"""`gpu-dra fault`: break fake GPUs, and mend them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from driver.cli import output
from driver.errors import InvalidValueError
from driver.settings import add_flags, load_settings
from driver.settings.options import Kind

if TYPE_CHECKING:
    import argparse
    from collections.abc import Sequence
    from pathlib import Path

    from driver.inventory.faults import Faults
    from driver.model.device import Gpu
    from driver.settings import Settings

DESCRIPTION = """\
Break fake GPUs while an agent runs on them, and mend them: what it publishes, taints and tells is as with real ones.

The agent watches its faults file and takes up a change at once. It is found by the agent's own settings, such as
--kubelet-root; in the agent's pod (kubectl exec) nothing needs to be given.
"""
EPILOG = """\
examples:
  gpu-dra fault inject gpu-3 xid=79             it reports an XID, and needs a reset
  gpu-dra fault inject gpu-3 lost               it falls off the bus
  gpu-dra fault inject gpu-0 ecc=2 slow=2s      several at once
  gpu-dra fault inject nvml-down                no GPU answers; or nvml-slow=60s
  gpu-dra fault recover gpu-3                   it had its reset
  gpu-dra fault recover                         all of them, and NVML
  gpu-dra fault list -o json

faults of a GPU:
  lost                    it does not answer
  xid=N[,N…]              it reports XID errors; serious ones make it need a reset
  xid=N@DEVICE            … in a MIG device, by its name in `gpu-dra status`: xid=31@mig-1g10gb-19-0
  recovery=ACTION         what it says that it needs: reset, reboot, drain-p2p, …, none
  row-remap=pending       or failed
  ecc=N                   uncorrected memory errors
  temperature=DEGREES     it slows down at 90
  nvlink-down=N           links;  nvlink-errors=N  more of them are news
  fabric=failed           or not-ready, degraded
  slow[=DURATION]         each observation takes that long (2s)
  not-supported=QUERY     it can't tell, such as memory, events, recovery;  fails=QUERY  that query fails
  mig-create-gi=fail      changing MIG fails; also mig-create-ci, mig-destroy, mig-mode, mig-slow
"""

_COMPLETED = (
    *(f"gpu-{number}" for number in range(8)),
    *("nvml-down", "nvml-slow=", "lost", "xid=", "recovery=", "row-remap=", "ecc=", "temperature=", "fabric=", "slow="),
    *("nvlink-down=", "nvlink-errors=", "not-supported=", "fails="),
)
_SETTINGS = ("kubelet_root", "state_dir", "faults_file", "node_name", "gpus", "profiles_dir")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's arguments."""
    parser.usage = "gpu-dra fault inject [GPU] FAULT… | recover [GPU…] | list"
    parser.add_argument("action", choices=("inject", "recover", "list"))
    words = parser.add_argument("words", nargs="*", metavar="GPU|FAULT", help="a GPU (gpu-3, 3, UUID), then its faults")
    words.completion = Kind(parse=str, metavar="", choices=_COMPLETED)  # type: ignore[attr-defined]
    output.add_format(parser)
    add_flags(parser, _SETTINGS)


def run(args: argparse.Namespace) -> int:
    """Change the faults, if that was asked for, and print those that are there now."""
    from driver.inventory.fault_file import edit_faults, read_faults

    settings = load_settings({key: value for key, value in vars(args).items() if key not in ("action", "words")})
    file, words = settings.faults, list(args.words)
    gpus = _gpus(settings, file)
    if args.action == "list":
        if words:
            raise InvalidValueError("fault list", " ".join(words), "takes no GPU and no fault: it shows all")
        faults = read_faults(file, gpus)
    elif args.action == "recover":
        faults = edit_faults(file, gpus, lambda before: _recovered(before, words, gpus))
    else:
        faults = edit_faults(file, gpus, lambda before: _injected(before, words, gpus))
    _print(faults, gpus, file, args.output)
    return 0


def _gpus(settings: Settings, file: Path) -> Sequence[Gpu]:
    """Return the GPUs by their names: those that the agent has left beside the file, else those of --gpus."""
    from driver.inventory.fault_file import read_names

    found: Sequence[Gpu] = read_names(file)
    if not found and settings.gpus:
        from driver.inventory.fake_gpus import build_gpus
        from driver.inventory.fake_spec import load_node
        from driver.inventory.profiles import load_products

        products = load_products(settings.profiles_dir, settings.source("profiles_dir"))
        spec = load_node(settings.gpus, products, settings.source("gpus"))
        found = build_gpus(spec, settings.node_name)
    if not found:
        raise InvalidValueError(
            "faults file",
            str(file),
            "no agent with fake GPUs uses it: give its --kubelet-root, --state-dir or --faults-file, or its --gpus",
        )
    return found


def _injected(faults: Faults, words: Sequence[str], gpus: Sequence[Gpu]) -> Faults:
    from driver.inventory.fault_words import NODE_WORDS, inject, inject_node
    from driver.inventory.faults import find_gpu

    if not words:
        raise InvalidValueError("fault inject", "", "which? for example: gpu-dra fault inject gpu-3 xid=79")
    if words[0].partition("=")[0] in NODE_WORDS:
        for word in words:
            faults = inject_node(faults, word)
        return faults
    gpu = find_gpu(words[0], gpus)
    if not words[1:]:
        raise InvalidValueError("fault inject", words[0], "which fault? for example: xid=79, lost, slow=2s")
    return inject(faults, gpu.uuid, gpu.name, words[1:])


def _recovered(faults: Faults, words: Sequence[str], gpus: Sequence[Gpu]) -> Faults:
    from driver.inventory.fault_words import recover
    from driver.inventory.faults import NO_FAULTS, find_gpu

    if not words:
        return NO_FAULTS
    for word in words:
        faults = recover(faults, find_gpu(word, gpus).uuid)
    return faults


def _print(faults: Faults, gpus: Sequence[Gpu], file: Path, style: str) -> None:
    from driver.inventory.fault_words import node_words, words_of

    node = node_words(faults)
    broken = [(gpu, words_of(faults.of(gpu.uuid))) for gpu in gpus if gpu.uuid in faults.gpus]
    if style != "table":
        gpu_faults = [{"name": gpu.name, "uuid": gpu.uuid, "faults": list(words)} for gpu, words in broken]
        output.print_value(style, {"faultsFile": str(file), "node": list(node), "gpus": gpu_faults})
    elif not node and not broken:
        print(f"nothing is wrong ({file})")
    else:
        rows = [("(node)", " ".join(node), "")] if node else []
        output.print_table(
            ("GPU", "FAULTS", "UUID"), [*rows, *((gpu.name, " ".join(w), gpu.uuid) for gpu, w in broken)]
        )
