"""What a whole step of a tiny Flux costs more when every kernel is installed and idle.

    python tests/metal_kernels/bench_step.py [--json]

The model is diffusers' FluxTransformer2DModel with random weights: one double and one single block of width 128 (one
head), 256 picture tokens and 64 text tokens. Idle: every op of every family is registered, and each call falls through
because its kernel is off. Prints the cost beside the bar, the cost of overrides that do nothing but call stock (the
least that any can cost), and fails (exit status 1) past LIMIT times the bar. The figures are this machine's
processor's, one thread; no GPU takes part in them. Beside other work a step's own time varies by more than the bar:
measure on a quiet machine.
"""

import json
import sys
import time
from contextlib import contextmanager
from importlib import import_module
from statistics import median

BAR = 2.0  # per cent of a step, a design number
LIMIT = 3
ROUNDS, STEPS = 30, 2


def step(device):
    """A function that runs one denoising step on `device`."""
    import torch
    from diffusers import FluxTransformer2DModel

    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = FluxTransformer2DModel(
            patch_size=1, in_channels=64, num_layers=1, num_single_layers=1, attention_head_dim=128,
            num_attention_heads=1, joint_attention_dim=64, pooled_projection_dim=32, guidance_embeds=True,
            axes_dims_rope=(16, 56, 56),
        ).eval().to(device)  # fmt: skip
        inputs = dict(
            hidden_states=torch.randn(1, 256, 64), encoder_hidden_states=torch.randn(1, 64, 64),
            pooled_projections=torch.randn(1, 32), timestep=torch.tensor([0.5]), guidance=torch.tensor([3.5]),
            img_ids=torch.zeros(256, 3), txt_ids=torch.zeros(64, 3),
        )  # fmt: skip
    inputs = {name: value.to(device) for name, value in inputs.items()}

    def run():
        with torch.inference_mode():
            return model(**inputs, return_dict=False)[0]

    return run


def seconds(run):
    run()  # the first one after a registration fills torch's caches
    times = []
    for _ in range(STEPS):
        begin = time.thread_time()  # this thread's processor time: other processes share the machine with a test run
        run()
        times.append(time.thread_time() - begin)
    return min(times)


@contextmanager
def one_thread():
    """All of a step's work on the thread that is measured."""
    import torch

    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


def bare(override):
    """An override that only calls stock."""
    stock, keyset = override.stock, override.keyset

    def dispatch(*args, **kwargs):
        return stock(keyset, *args, **kwargs)

    return dispatch


def measure(face, device="mps"):
    """{"stock_ms", "bare_ms", "idle_ms", "cost_percent", "bare_percent", "bar_percent", "ops"}: the medians of ROUNDS
    alternating rounds of each, and of the differences within a round."""
    patcher = import_module(f"{face.__name__}.patcher")
    run, entry = step(device), patcher.entry
    names = [kernel.name for kernel in face.KERNELS]
    ops = sorted({op for kernel in face.KERNELS for op in kernel.ops})

    def idle(entry):
        patcher.entry = entry
        face.install()
        try:
            with face.registered(*names), face.using(**dict.fromkeys(names, "off")):
                return seconds(run)
        finally:
            face.uninstall()

    face.uninstall()
    rounds = []
    try:
        with one_thread():
            run()
            for _ in range(ROUNDS):
                rounds.append((seconds(run), idle(bare), idle(entry)))
    finally:
        patcher.entry = entry
    stock, floor, ours = (median(times) for times in zip(*rounds, strict=True))
    return {
        "stock_ms": 1e3 * stock,
        "bare_ms": 1e3 * floor,
        "idle_ms": 1e3 * ours,
        "cost_percent": 100 * median(three[2] - three[0] for three in rounds) / stock,
        "bare_percent": 100 * median(three[1] - three[0] for three in rounds) / stock,
        "bar_percent": BAR,
        "ops": ops,
    }


def failed(result):
    return result["cost_percent"] > LIMIT * result["bar_percent"]


def main():
    from bench_start import start

    options, metal_kernels = start(__doc__, faults="2.13")
    result = measure(metal_kernels)
    if options.json:
        print(json.dumps(result, indent=2))
    else:
        print(
            f"a step of a tiny Flux: {result['stock_ms']:.2f} ms stock, {result['idle_ms']:.2f} ms with "
            f"{len(result['ops'])} ops installed and idle: {result['cost_percent']:+.2f} % (bar {BAR:g} %); "
            f"with overrides that only call stock {result['bare_percent']:+.2f} %"
        )
    if failed(result):
        print(f"FAILED: more than {LIMIT} times the bar", file=sys.stderr)
    return 1 if failed(result) else 0


if __name__ == "__main__":
    sys.exit(main())
