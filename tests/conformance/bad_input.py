"""Arguments that are wrong, as data: what every kernel must refuse in the words of the CPU, before anything is written.

A row's `error` says where the words come from: CPU, the same call on the CPU; STOCK, the same call on the device with
the kernels off, where the CPU has no such case (tensors on two devices); or a type and a pattern, where neither has the
op (scaled_mm: what torch's CUDA kernel raises, as upstream's Metal one does). `ops` is what metal_kernels.ops raises,
if that is something else.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch

CPU, STOCK = "what the CPU raises", "what stock raises"
E4M3, E5M2 = torch.float8_e4m3fn, torch.float8_e5m2
BF16 = torch.bfloat16


@dataclass(frozen=True)
class Bad:
    """op: of library.OPERATIONS. make: its arguments, on the CPU. stay: positions that are left there."""

    op: str
    what: str
    make: Callable[[], tuple]
    error: object = CPU
    ops: object = None
    stay: tuple[int, ...] = ()

    @property
    def id(self) -> str:
        return f"{self.op}: {self.what}"


def fp8(*sizes: int, dtype: torch.dtype = E4M3) -> torch.Tensor:
    return torch.zeros(sizes, dtype=torch.uint8).view(dtype)


def ends(*values: int, dtype: torch.dtype = torch.int32) -> torch.Tensor:
    return torch.tensor(values, dtype=dtype)


def zeros(*sizes: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.zeros(sizes, dtype=dtype)


def rows() -> Iterator[Bad]:
    yield from _pad()
    yield from _softmax()
    yield from _linear()
    yield from _experts()
    yield from _fp8()
    yield from _scaled_mm()


def _pad() -> Iterator[Bad]:
    for what, pad in (("an odd list", (1,)), ("more than it has dimensions", (1, 1, 1, 1)), ("cropped away", (-4, 0))):
        yield Bad("pad", what, lambda pad=pad: (zeros(3), pad, 0))
    yield Bad("pad", "a value that does not fit", lambda: (zeros(3), (1, 1), 1j))


def _softmax() -> Iterator[Bad]:
    for op in ("softmax", "log_softmax"):
        yield Bad(op, "a dimension that is not there", lambda: (zeros(3, 4), 2, False))
        yield Bad(op, "a negative one", lambda: (zeros(3, 4), -3, False))
        yield Bad(op, "integers", lambda: (zeros(3, 4, dtype=torch.int32), 0, False))
        yield Bad(op, "booleans", lambda: (zeros(3, 4, dtype=torch.bool), 0, False))
        yield Bad(op, "half_to_float of float32", lambda: (zeros(3, 4), 0, True))
        yield Bad(f"{op}_backward", "two dtypes", lambda: (zeros(3, 4), zeros(3, 4).half(), 0, torch.float32))
        yield Bad(f"{op}_backward", "no such dimension", lambda: (zeros(3, 4), zeros(3, 4), 2, torch.float32))

    # (The CPU's backward of log_softmax does not look.)
    yield Bad("softmax_backward", "two shapes", lambda: (zeros(3, 4), zeros(3, 5), 0, torch.float32))


def _linear() -> Iterator[Bad]:
    for count in (3, 30):  # ours, and stock's
        yield Bad("linear", f"lengths that differ, {count} rows", lambda n=count: (zeros(n, 8), zeros(5, 7), None))
        yield Bad("linear", f"a bias too short, {count} rows", lambda n=count: (zeros(n, 8), zeros(5, 8), zeros(4)))
        yield Bad("linear", f"two dtypes, {count} rows", lambda n=count: (zeros(n, 8), zeros(5, 8).half(), None))
        yield Bad("linear", f"a bias of another dtype, {count} rows",
                  lambda n=count: (zeros(n, 8), zeros(5, 8), zeros(5).half()))  # fmt: skip
        yield Bad("linear", f"a weight of three dimensions, {count} rows",
                  lambda n=count: (zeros(n, 8), zeros(2, 5, 8), None))  # fmt: skip
        yield Bad("linear", f"a weight on another device, {count} rows",
                  lambda n=count: (zeros(n, 8), zeros(5, 8), None), STOCK, stay=(1,))  # fmt: skip
        yield Bad("linear", f"a bias on another device, {count} rows",
                  lambda n=count: (zeros(n, 8), zeros(5, 8), zeros(5)), STOCK, stay=(2,))  # fmt: skip
    yield Bad("linear", "a number as input", lambda: (zeros(), zeros(5, 8), None))


def _experts() -> Iterator[Bad]:
    a, b = (lambda: zeros(4, 16)), (lambda: zeros(2, 16, 8))
    yield Bad("grouped_mm", "K of two sizes", lambda: (zeros(4, 24), b(), ends(2, 4)))
    yield Bad("grouped_mm", "no ends", lambda: (a(), b(), None))
    yield Bad("grouped_mm", "ends of batches", lambda: (zeros(2, 4, 16), b(), ends(2, 4)))
    yield Bad("grouped_mm", "ends of 64 bits", lambda: (a(), b(), ends(2, 4, dtype=torch.int64)))
    yield Bad("grouped_mm", "ends in two dimensions", lambda: (a(), b(), ends(2, 4).view(1, 2)))
    yield Bad("grouped_mm", "fewer ends than experts", lambda: (a(), b(), ends(4)))
    yield Bad("grouped_mm", "batches of two sizes", lambda: (zeros(3, 4, 16), b(), None))
    yield Bad("grouped_mm", "rows that start between 16 bytes", lambda: (zeros(4, 15), zeros(2, 15, 8), ends(2, 4)))
    yield Bad("grouped_mm", "two dtypes", lambda: (a(), b().half(), ends(2, 4)))
    yield Bad("grouped_mm", "integers", lambda: (a().int(), b().int(), ends(2, 4)))
    yield Bad("grouped_mm", "one dimension", lambda: (zeros(16), b(), ends(2, 4)))
    yield Bad("grouped_mm", "experts on another device", lambda: (a(), b(), ends(2, 4)), STOCK, stay=(1,))
    yield Bad("topk", "more than there are", lambda: (zeros(4, 20), 21, -1, True))
    yield Bad("topk", "fewer than none", lambda: (zeros(4, 20), -1, -1, True))
    yield Bad("histc", "no bins", lambda: (zeros(5, dtype=torch.int32), 0, 0, 4), (RuntimeError, "bins"))
    yield Bad("histc", "min above max", lambda: (zeros(5), 5, 4, 0))


def _fp8() -> Iterator[Bad]:
    x, w = (lambda: zeros(3, 64)), (lambda: fp8(16, 64))
    takes = (ValueError, r"fp8.linear takes x fp32, fp16 or bf16 \[..., K\], an FP8 weight \[N, K\]")
    for op in ("fp8_linear",):
        yield Bad(op, "lengths that differ", lambda: (x(), fp8(16, 48), None, None), ops=takes)
        yield Bad(op, "a bias too short", lambda: (x(), w(), None, zeros(15)), ops=takes)
        yield Bad(op, "integers", lambda: (x().int(), w(), None, None), ops=takes)
        yield Bad(op, "a weight of three dimensions", lambda: (x(), fp8(2, 16, 64), None, None), ops=takes)
        yield Bad(op, "a weight on another device", lambda: (x(), w(), None, None), STOCK, takes, stay=(1,))
    scales = (ValueError, "3 scales for a weight of 16 rows")
    yield Bad("fp8_scaled_linear", "scales of other rows", lambda: (x(), w(), zeros(3), None), scales)
    for op, words, make in (
        ("fp8_quantize", "dtype is float8", lambda: (x(), torch.float16, "tensor", None)),
        ("fp8_quantize", "per is", lambda: (x(), E4M3, "column", None)),
        ("fp8_quantize", "4 scales for 3 rows", lambda: (x(), E4M3, "row", zeros(4))),
        ("fp8_quantize", "multiple of 32", lambda: (zeros(3, 33), E4M3, "block32", None)),
        ("fp8_quantize", "multiple of 32", lambda: (zeros(32), E4M3, "block32", None)),
        ("fp8_quantize", "makes float8_e4m3fn", lambda: (x(), E5M2, "block32", None)),
        ("fp8_quantize", "fp32, fp16 or bf16", lambda: (x().int(), E4M3, "tensor", None)),
        ("fp8_dequantize", "takes FP8", lambda: (x(), zeros(1), BF16)),
        ("fp8_dequantize", "5 scales for 16 rows", lambda: (w(), zeros(5), BF16)),
        ("fp8_dequantize", "gives fp32, fp16 or bf16", lambda: (w(), zeros(1), torch.int8)),
        ("nvfp4_dequantize", "takes uint8", lambda: (x(), zeros(1), w(), BF16, True)),
        ("nvfp4_dequantize", "multiple of 8", lambda: (zeros(4, 9).byte(), zeros(1), w(), BF16, True)),
        ("fp8_stochastic_rounding", "random is", lambda: (x(), zeros(3, 63).byte(), E4M3)),
        ("fp8_stochastic_rounding", "dtype is float8_e4m3fn or", lambda: (x(), x().byte(), torch.float16)),
    ):
        yield Bad(op, words, make, (ValueError, words))


def _scaled_mm() -> Iterator[Bad]:
    """a [16, 32], b [32, 48]."""
    a, b, s = (lambda: fp8(16, 32)), (lambda: fp8(48, 32).t()), (lambda: torch.ones(()))
    scaling, runtime = (ValueError, "Invalid scaling configuration"), RuntimeError
    for what, error, make in (
        ("K no multiple of 16", (runtime, r"Trailing dimension of mat1 must be divisible by 16.*\(16x17\)"),
         lambda: (fp8(16, 17), fp8(48, 17).t(), s(), s(), None, BF16)),
        ("N no multiple of 16", (runtime, r"mat2 shape \(32x17\) must be divisible by 16"),
         lambda: (a(), fp8(17, 32).t(), s(), s(), None, BF16)),
        ("K of two sizes", (runtime, r"mat1 and mat2 shapes cannot be multiplied \(16x32 and 48x48\)"),
         lambda: (a(), fp8(48, 48).t(), s(), s(), None, BF16)),
        ("a vector", (runtime, "mat1 must be a matrix"), lambda: (a()[0], b(), s(), s(), None, BF16)),
        ("scales of float16", scaling, lambda: (a(), b(), s().half(), s(), None, BF16)),
        ("three scales", scaling, lambda: (a(), b(), torch.ones(3), s(), None, BF16)),
        ("scales that lie the other way", scaling, lambda: (a(), b(), torch.ones(1, 16), s(), None, BF16)),
        ("a wide matrix", scaling, lambda: (a(), b().float(), s(), s(), None, BF16)),
        ("e5m2 twice", (runtime, "Multiplication of two Float8_e5m2 matrices"),
         lambda: (fp8(16, 32, dtype=E5M2), fp8(48, 32, dtype=E5M2).t(), s(), s(), None, BF16)),
        ("a bias too short", (runtime, "Bias must be size 48 but got 47"),
         lambda: (a(), b(), s(), s(), torch.ones(47, dtype=BF16), BF16)),
        ("a bias of another dtype", (runtime, "Bias must be BFloat16 to compute BFloat16 output, but got Float"),
         lambda: (a(), b(), s(), s(), torch.ones(48), BF16)),
        ("results of integers", (runtime, "out_dtype must be a floating type"),
         lambda: (a(), b(), s(), s(), None, torch.int8)),
    ):  # fmt: skip
        yield Bad("scaled_mm", what, make, error)
    for position in (2, 3):
        yield Bad("scaled_mm", f"scale {position - 1} on another device",
                  lambda: (a(), b(), torch.ones(1), torch.ones(1), None, BF16),
                  (runtime, "same device"), stay=(position,))  # fmt: skip


# Arithmetic on FP8 raises as on the CPU, never computes with the bytes. x: FP8 [16, 16].
ARITHMETIC = {
    "add": lambda x: x + x,
    "mul": lambda x: x * 2.0,
    "mixed": lambda x: x * torch.ones(16, device=x.device),
    "neg": lambda x: -x,
    "sum": lambda x: x.sum(),
    "amax": lambda x: x.amax(),
    "sort": lambda x: x.sort(),
    "topk": lambda x: x.topk(2),
    "softmax": lambda x: x.softmax(0),
    "relu": lambda x: x.relu(),
}

# Writes to `out` that must not begin. out: what is to stay as it is; x: a good input.
WRITES = {
    "softmax to another dtype": lambda out, x: torch.softmax(x, 0, out=out.half()),
    "softmax along no dimension": lambda out, x: torch.softmax(x, 5, out=out),
    "log_softmax of integers": lambda out, x: torch.log_softmax(x.int(), 0, out=out),
    "a copy of another shape to FP8": lambda out, x: out.copy_(x[:3, :3]),
    "a slice of another shape in FP8": lambda out, x: out[1:3].copy_(x[:3]),
    "a fill that does not fit FP8": lambda out, x: out.fill_(1j),
}
