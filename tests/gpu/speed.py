"""How fast: medians of graph replays, over copies of a case's memory that together are far larger than the L2.

Beside each case, in the same run: the same bytes copied on the device, and torch's own CUDA operation. The start of a
graph is in its time, about 8 us. All graphs therefore last about equally long, whatever is timed and however many
copies of its memory there are: else it would weigh on a kernel of 2 launches a graph ten times as much as on the copy
of the same bytes in 20 (an empty kernel then takes 5.3 and 1.5 us; it takes 1.2 in either this way).
"""

from __future__ import annotations

import statistics
from collections.abc import Callable

import torch
import torch.nn.functional as F

from .plan import Instance, fill

REPLAYS = 31
GRAPH_TIME = 300.0  # microseconds that a graph lasts at least
ROTATED = 320 * 2**20  # bytes of all copies together; the H200's L2 has 60 MB
MOST_COPIES = 64
_LINE, _PAGE = 512, 2**21


def microseconds(calls: list[Callable[[], None]], replays: int = REPLAYS) -> float:
    """Median time of one of `calls`, which are replayed one after the other as a graph, over and over."""
    once = _replayed(calls, 3) * len(calls)
    return _replayed(calls * max(1, round(GRAPH_TIME / once)), replays)


def _replayed(calls: list[Callable[[], None]], replays: int) -> float:
    for call in calls[:2]:
        call()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for call in calls:
            call()
    for _ in range(2):
        graph.replay()
    times = []
    for _ in range(replays):
        begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        begin.record()
        graph.replay()
        end.record()
        torch.cuda.synchronize()
        times.append(begin.elapsed_time(end) * 1e3 / len(calls))
    return statistics.median(times)


def moved_bytes(case: dict) -> int:
    """What must be read and written: given, or all inputs and results, each element once."""
    if case["moved"] is not None:
        return case["moved"]
    total = 0
    for reference in [*case["inputs"], *case["results"]]:
        count = 1
        for size, stride in zip(reference["shape"], reference["stride"], strict=True):
            count *= size if stride else 1
        total += count * getattr(torch, reference["dtype"]).itemsize
    return total


class Copies:
    """Copies of any number of bytes, at places of one large buffer that rotate."""

    def __init__(self, bytes_: int = 3 * 2**30):
        self._from = torch.randint(0, 256, (bytes_,), dtype=torch.uint8, device="cuda")
        self._to = torch.empty_like(self._from)
        self._known: dict[int, float] = {}

    def microseconds(self, moved: int) -> float:
        """A copy that reads moved / 2 bytes and writes as many."""
        # Of whole pages where it is large. Other copies take up to half as long again, so the best of two.
        if moved <= 16 * _PAGE:
            return self._of(moved, _LINE)
        return min(self._of(moved, _PAGE), self._of(moved, min(32, moved // (8 * _PAGE)) * _PAGE))

    def _of(self, moved: int, unit: int) -> float:
        half = max(unit, round(moved / 2 / unit) * unit)
        if half not in self._known:
            room = min(half, self._from.numel())
            slots = max(1, min(MOST_COPIES, -(-ROTATED // room), self._from.numel() // room))
            places = [slice(i * room, (i + 1) * room) for i in range(slots)]
            calls = [lambda a=self._to[place], b=self._from[place]: a.copy_(b) for place in places]
            self._known[half] = microseconds(calls) * half / room
        return self._known[half] * moved / 2 / half


def instances(case: dict, functions: dict, driver) -> list[Instance]:
    total = max(1, sum(case["storages"]))
    count = max(2, min(MOST_COPIES, -(-ROTATED // total)))
    first = Instance(case, functions, driver)
    generator = torch.Generator("cuda").manual_seed(1)
    fill(first, generator)
    return [first, *(Instance(case, functions, driver, values=first.storages) for _ in range(count - 1))]


def torch_call(case: dict, instance: Instance) -> Callable[[], None] | None:
    """torch's own operation on CUDA for the same arguments, or None where it has none."""
    args = instance.arguments()
    op = case["op"]
    if op == "constant_pad_nd":
        x, pad, value = args
        return lambda: F.pad(x, pad, value=value)
    if op in ("_softmax", "_log_softmax", "_softmax_backward_data", "_log_softmax_backward_data"):
        return lambda: getattr(torch.ops.aten, op)(*args)
    if op == "linear":
        return lambda: F.linear(*args)
    if op == "_grouped_mm" and args[0].dtype is torch.bfloat16:
        a, b, offs = args
        return lambda: torch._grouped_mm(a, b, offs=offs)
    if op == "topk":
        return lambda: torch.topk(*args)
    if op == "cast":
        return lambda: args[0].to(args[1])
    if op == "quantize" and args[3] is not None:
        x, dtype, _, scale = args
        most = torch.finfo(dtype).max
        return lambda: (x * (1.0 / scale).to(x.dtype)).clamp(-most, most).to(dtype)
    if op == "dequantize":
        x, scale, dtype = args
        return lambda: x.to(dtype) * scale.to(dtype)
    if op == "fp8_linear":  # the same layer with its weight in x's dtype
        x, weight, scale, bias = args
        wide = (weight.to(torch.float32) * (1.0 if scale is None else scale.view(-1, 1))).to(x.dtype)
        return lambda: F.linear(x, wide, bias)
    return None
