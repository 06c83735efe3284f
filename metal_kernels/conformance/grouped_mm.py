"""grouped_mm, and the routing before it: topk, histc of integers."""

from __future__ import annotations

from collections.abc import Callable

import torch

from .case import EPS, Case, Expected, Operation, Tolerance, exactly, roundings
from .inputs import Source

EXACT_ORDER = Tolerance(0.0, "values are moved, and equals keep their order")
EXACT_COUNT = Tolerance(0.0, "integers")


def _operand(source: Source, sizes: tuple[int, ...], dtype: torch.dtype, layout: str) -> torch.Tensor:
    """[..., rows, columns] with one dimension of stride 1 and the other's stride a multiple of 16 bytes."""
    *groups, rows, columns = sizes

    def padded(rows: int, columns: int, extra: int = 0) -> torch.Tensor:
        vector = 16 // dtype.itemsize
        return source.normal((*groups, rows, -(-columns // vector) * vector + extra), dtype)[..., :columns]

    if layout == "transposed":  # experts [G, N, K] as they lie, passed as [G, K, N]
        return padded(columns, rows).mT
    if layout == "sliced":
        *_, count = padded(columns + 3, rows, 16).shape
        return source.normal((*groups, columns + 3, -(-count // 8) * 8 + 16), dtype)[..., 2:-1, 8 : 8 + rows].mT
    if layout == "repeated":
        return source.normal((columns, -(-rows // 8) * 8), dtype)[:, :rows].mT.expand(sizes)
    if layout == "offset":
        whole = padded(rows, columns)
        flat = source.normal((whole.untyped_storage().nbytes() // dtype.itemsize + 3,), dtype)
        return flat[3:].as_strided(sizes, whole.stride(), 3)
    return padded(rows, columns)


def _make(case: Case) -> tuple:
    """shapes: a, b. layout: of b, the experts. options: a, its layout; ends: where each group ends, None for none;
    a number of groups, drawn as a router would: `experts`."""
    source = Source(case)
    a = _operand(source, case.shapes[0], case.dtype, case.option("a", "contiguous"))
    b = _operand(source, case.shapes[1], case.dtype, case.layout)
    ends = case.option("ends")
    if experts := case.option("experts"):
        chosen = source.integers((case.shapes[0][-2],), 0, experts, torch.int64)
        ends = torch.bincount(chosen, minlength=experts).cumsum(0).tolist()
    return a, b, None if ends is None else torch.tensor(ends, dtype=torch.int32, device="cpu")


def _call(a: torch.Tensor, b: torch.Tensor, offs: torch.Tensor | None) -> torch.Tensor:
    return torch._grouped_mm(a, b, offs=offs)


def spans(offs: torch.Tensor, size: int) -> list[tuple[int, int]]:
    """[begin, end) of each group as the kernels define it: ends within [0, size], none before an earlier one."""
    found, begin = [], 0
    for end in offs.tolist():
        end = max(begin, min(max(end, 0), size))
        found.append((begin, end))
        begin = end
    return found


def product(a: torch.Tensor, b: torch.Tensor, offs: torch.Tensor | None) -> torch.Tensor:
    """In a's dtype, group by group; zero past the last end."""
    if offs is None:
        return a @ b
    if a.dim() == 2 and b.dim() == 2:
        if not len(offs):
            return a.new_zeros(0, a.shape[0], b.shape[1])
        return torch.stack([a[:, i:j] @ b[i:j] for i, j in spans(offs, a.shape[1])])
    y = a.new_zeros(a.shape[-2], b.shape[-1])
    for group, (i, j) in enumerate(spans(offs, a.shape[0] if a.dim() == 2 else b.shape[1])):
        if a.dim() == 2:
            y[i:j] = a[i:j] @ b[group]
        else:
            y[:, i:j] = a[group] @ b[:, i:j]
    return y


def grouped_mm(a: torch.Tensor, b: torch.Tensor, offs: torch.Tensor | None) -> tuple[Expected, ...]:
    """A sum of K products in float."""
    left, right = a.double(), b.double()
    budget = roundings(a.shape[-1]) * EPS * product(left.abs(), right.abs(), offs)
    return (Expected(product(left, right, offs), a.dtype, budget),)


def _make_topk(case: Case) -> tuple:
    """options: k, largest, values: "ties" (whole numbers), "specials" (NaN, infinities, both zeros)."""
    x = Source(case).normal(case.shapes[0], case.dtype, case.layout, scale=2.0)
    if (values := case.option("values")) is not None:
        x = x.float().round().to(case.dtype)
    if values == "specials":
        x[..., ::7], x[..., 3], x[..., 5], x[..., 8] = torch.nan, torch.inf, -torch.inf, -0.0
    return x, case.option("k"), -1, case.option("largest", True)


def topk(x: torch.Tensor, k: int, dim: int, largest: bool) -> tuple[Expected, ...]:
    """Those of a stable sort, NaN greatest: of equal values the ones of the lower indices, in order."""
    order = torch.sort(x.float(), dim=-1, descending=largest, stable=True).indices[..., :k]
    order = torch.empty(order.shape, dtype=torch.int64, device="cpu").copy_(order)
    # Gathered as bits: the CPU's gather of bfloat16 gives every NaN another payload.
    values = x.view(torch.int32 if x.dtype is torch.float32 else torch.int16).gather(-1, order).view(x.dtype)
    return exactly(values), exactly(order)


def _make_histc(case: Case) -> tuple:
    """options: bins, min, max; high: the elements are in [0, high)."""
    x = Source(case).integers(case.shapes[0], 0, case.option("high", 100), case.dtype, case.layout)
    return x, case.option("bins", 100), case.option("min", 0), case.option("max", 0)


def histc(x: torch.Tensor, bins: int, low: int, high: int) -> tuple[Expected, ...]:
    """In integers: the bin of an element is floor((element - min) * bins / (max - min)); max is in the last one."""
    values = x.flatten().to(torch.int64)
    if low == high and len(values):
        low, high = int(values.min()), int(values.max())
    if low == high:
        low, high = low - 1, high + 1
    inside = values[(values >= low) & (values <= high)]
    index = ((inside - low) * bins // (high - low)).clamp(max=bins - 1)
    return (exactly(torch.bincount(index, minlength=bins).to(x.dtype)),)


def _routing(name: str, make: Callable, call: Callable, reference: Callable, tolerance: Tolerance) -> Operation:
    return Operation(name, "grouped_mm", make, call, reference, tolerance)


OPERATIONS = (
    Operation("grouped_mm", "grouped_mm", _make, _call, grouped_mm,
              Tolerance(0.5, "sums in float, one rounding to the output's dtype")),
    _routing("topk", _make_topk, torch.topk, topk, EXACT_ORDER),
    _routing("histc", _make_histc, torch.histc, histc, EXACT_COUNT),
)  # fmt: skip
