"""One decode in a process of its own: `python -m demo.phase cpu|stock|repaired FOLDER`.

A process a phase, because what stock leaves in driver memory stays until its process ends: in one process the
second phase would be charged for the first. Writes FOLDER/<phase>.json and FOLDER/<phase>.pt (the picture).
"""
import gc
import json
import sys
import time
from pathlib import Path

import torch

from .device import compiling, open_device
from .pads import PadCounter
from .progress import bar, waiting
from .workload import Workload, decode

TITLES = {"cpu": "CPU reference", "stock": "stock MPS", "repaired": "repaired MPS"}
OP = "aten::constant_pad_nd"


def run_cpu(total_pads):
    """The reference: float32 on the CPU, with its pads counted. Neither the pack nor the device is loaded."""
    with waiting("building the VAE"):
        vae, latent = Workload().build("cpu")
    with bar(TITLES["cpu"], total_pads) as progress, PadCounter(lambda n: progress.update()) as pads:
        start = time.perf_counter()
        picture = decode(vae, latent)
        seconds = time.perf_counter() - start
    return picture, {
        "seconds": seconds,
        "pads": pads.as_dict(),
        "spread": picture.std().item(),
        "workload": Workload().describe(vae, picture),
    }


def run_mps(phase, total_pads):
    """The decode on the mps device, with the pack loaded; METAL_KERNELS decides whether it repairs."""
    from pack import load_as_comfyui

    from .memory import NAMES, Timeline, read

    with waiting("preparing the device", progress=compiling()):  # the software device is compiled on its first use
        device = open_device()
        pack, _ = load_as_comfyui()
    with waiting("building the VAE"):
        vae, latent = Workload().build("mps")
        before = _settle(read)
    device.reset_counters()
    with bar(TITLES[phase], total_pads) as progress, PadCounter(lambda n: progress.update()) as pads, \
            Timeline(vae) as timeline:
        start = time.perf_counter()
        picture = decode(vae, latent)
        torch.mps.synchronize()
        seconds = time.perf_counter() - start
    picture = picture.cpu()
    after = _settle(read)
    peak, method = device.peaks(timeline)
    kernel = pack.metal_kernels.status()["kernels"]["pad"]
    taken = sum(op["taken"] for op in kernel["ops"].values())
    stock = device.stock_calls(OP, pads.calls, taken)
    return picture, {
        "device": device.as_dict(),
        "seconds": seconds,
        "pads": pads.as_dict(),
        "pad_calls": {"metal_kernels": taken, "stock": stock},
        "kernel": {"state": kernel["state"], "reason": kernel["reason"]},
        "memory": {
            "peak": peak,
            "method": method,
            "before": before._asdict(),
            "after": after._asdict(),
            "driver_growth": after.driver - before.driver,
            "timeline": {"columns": ["seconds", *NAMES], "rows": timeline.thinned()},
        },
    }


def _settle(read):
    """A reading with nothing in flight and nothing pooled, so that two of them compare."""
    gc.collect()
    torch.mps.synchronize()
    torch.mps.empty_cache()
    return read()


def main(phase, folder, total_pads):
    picture, result = run_cpu(total_pads) if phase == "cpu" else run_mps(phase, total_pads)
    torch.save(picture, Path(folder, f"{phase}.pt"))
    Path(folder, f"{phase}.json").write_text(json.dumps(result))


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]))
