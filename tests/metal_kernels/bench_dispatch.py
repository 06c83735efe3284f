"""What a patched op costs when its kernels let a call pass: microseconds over stock, for the three hottest forms.

    python tests/metal_kernels/bench_dispatch.py [--json]

Prints the measured cost beside the bar, and fails (exit status 1) past LIMIT times the bar. The figures are this
machine's processor's; no GPU takes part in them, on a Mac or on the software device.
"""

import json
import sys
import time

BARS = {"constant_pad_nd": 10.0, "linear": 5.0, "copy_": 5.0}  # microseconds, a design number
LIMIT = 3
ROUNDS, CALLS = 12, 1500


def kernels(core):
    """One idle kernel for each op, as a family would write it: pad and linear look at shapes, copy_ at two dtypes."""
    import torch

    float8 = frozenset((torch.float8_e4m3fn, torch.float8_e5m2))

    def make(op, supports, guard=None):
        patch = core.kernel.Patch(op, supports, run=lambda *args: None, guard=guard)
        need = core.kernel.Need(True, "measured")
        return core.kernel.Kernel(op.strip("_"), op, (patch,), lambda environment: need, lambda dtype: None, "Nothing.")

    return (
        make("constant_pad_nd", lambda x, pad, value=0: x.dim() > 16 and len(pad) % 2 == 0),
        make("linear", lambda x, weight, bias=None: x.numel() > 2**40),
        make("copy_", lambda target, source, non_blocking=False: True,
             guard=lambda target, source, non_blocking=False: source.dtype in float8 or target.dtype in float8),
    )  # fmt: skip


def calls(device):
    import torch

    x, weight, target = (torch.zeros(16, 16, device=device) for _ in range(3))
    return {
        "constant_pad_nd": lambda: torch.constant_pad_nd(x, [1, 1]),
        "linear": lambda: torch._C._nn.linear(x, weight),
        "copy_": lambda: target.copy_(x),
    }


def seconds(call):
    begin = time.thread_time()  # this thread's processor time: other processes share the machine with a test run
    for _ in range(CALLS):
        call()
    return (time.thread_time() - begin) / CALLS


def measure(core, device="mps"):
    """op -> {"stock", "patched", "cost", "bar"}, all in microseconds: the least of ROUNDS alternating rounds each."""
    installation = core.installation.Installation(kernels(core))
    best = {op: {"stock": float("inf"), "patched": float("inf")} for op in BARS}
    for _ in range(ROUNDS):
        for side in ("stock", "patched"):
            if side == "patched":
                installation.install()
            for op, call in calls(device).items():
                best[op][side] = min(best[op][side], seconds(call) * 1e6)
        assert set(installation.patcher.overrides) == set(BARS)
        installation.uninstall()
    for op, times in best.items():
        times["cost"] = times["patched"] - times["stock"]
        times["bar"] = BARS[op]
    return best


def failures(results):
    return [op for op, times in results.items() if times["cost"] > LIMIT * times["bar"]]


def main():
    import types
    from importlib import import_module

    from bench_start import start

    options, metal_kernels = start(__doc__)
    name = metal_kernels.__name__
    results = measure(types.SimpleNamespace(**{m: import_module(f"{name}.{m}") for m in ("installation", "kernel")}))
    if options.json:
        print(json.dumps(results, indent=2))
    else:
        print(f"{'falling through':<18}{'stock':>10}{'patched':>10}{'cost':>10}{'bar':>8}   (us)")
        for op, times in results.items():
            print(f"{op:<18}{times['stock']:>10.2f}{times['patched']:>10.2f}{times['cost']:>10.2f}{times['bar']:>8.1f}")
    for op in failures(results):
        print(f"FAILED: {op} costs more than {LIMIT} times its bar", file=sys.stderr)
    return 1 if failures(results) else 0


if __name__ == "__main__":
    sys.exit(main())
