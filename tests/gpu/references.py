"""Is a result right? Each op's results against float64 on the GPU, whole, and on the CPU, sampled; moves bit for bit.

A check returns the largest error over its tolerance: at most 1 passes.
"""

from __future__ import annotations

import math

import torch

_SAMPLES = 64
_BLOCK = 2**26  # elements of float64 at a time


def check(op: str, args: list, results: list[torch.Tensor], inputs: list[torch.Tensor]) -> float:
    """args: of the call, tensors on the GPU among them. Raises AssertionError for moves that differ."""
    return _CHECKS[op](args, results)


def _spacing(y: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """The distance of neighbouring numbers of `dtype` around the float64 y."""
    info = torch.finfo(dtype)
    return torch.exp2(y.abs().clamp(min=info.tiny).log2().floor()) * info.eps


def _excess(y: torch.Tensor, reference: torch.Tensor, more: torch.Tensor | float) -> float:
    """Largest |y - reference| over half a place of y's dtype, a hundredth of it, and `more`. NaN only where wanted."""
    wide = y.double()
    if not torch.equal(wide.isnan(), reference.isnan()):
        return math.inf
    error = (wide - reference).abs().nan_to_num(0.0)
    error = torch.where(wide == reference, 0.0, error)
    place = _spacing(torch.maximum(wide.nan_to_num(0.0).abs(), reference.nan_to_num(0.0).abs()), y.dtype)
    return float((error / (0.505 * place + more)).max()) if y.numel() else 0.0


def _same_bits(y: torch.Tensor, reference: torch.Tensor, what: str) -> float:
    if y.shape != reference.shape or y.dtype != reference.dtype:
        raise AssertionError(f"{what}: {tuple(y.shape)} {y.dtype}, not {tuple(reference.shape)} {reference.dtype}")
    if not y.numel():
        return 0.0
    bits = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64, 16: torch.int64}[y.element_size()]
    step = max(1, 2**28 // max(1, y[0].numel())) if y.dim() else 1
    for start in range(0, y.shape[0] if y.dim() else 1, step):
        ours, theirs = (t[start : start + step] if t.dim() else t for t in (y, reference))
        ours, theirs = ours.contiguous().view(bits), theirs.to(y.device).contiguous().view(bits)
        if not torch.equal(ours, theirs):
            index = (ours != theirs).nonzero()[0].tolist()
            raise AssertionError(f"{what}: bits differ, first at {index} after row {start}")
    return 0.0


# ---- pad


def _pad(args, results):
    (x, pad, value), (y,) = args, results
    reference = torch.nn.functional.pad(x.view(_MOVED[x.element_size()]), pad, value=_bits_of(x.dtype, value))
    _same_bits(y.view(_MOVED[x.element_size()]), reference, "pad, CUDA")
    del reference
    index = [torch.randint(0, n, (4096,)) for n in y.shape]  # and on the CPU, by indices
    rank = y.dim()
    lefts = [pad[2 * (rank - 1 - d)] if 2 * (rank - 1 - d) < len(pad) else 0 for d in range(rank)]
    source = [i - left for i, left in zip(index, lefts, strict=True)]
    inside = torch.ones(4096, dtype=torch.bool)
    for i, n in zip(source, x.shape, strict=True):
        inside &= (i >= 0) & (i < n)
    clamped = [i.clamp(0, n - 1).cuda() for i, n in zip(source, x.shape, strict=True)]
    moved = x.view(_MOVED[x.element_size()])[tuple(clamped)].cpu()
    wanted = torch.where(inside, moved, torch.tensor(_bits_of(x.dtype, value), dtype=moved.dtype))
    got = y.view(_MOVED[x.element_size()])[tuple(i.cuda() for i in index)].cpu()
    return _same_bits(got, wanted, "pad, CPU")


_MOVED = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


def _bits_of(dtype: torch.dtype, value) -> int:
    return torch.full((1,), value, dtype=dtype).view(_MOVED[dtype.itemsize]).item()


# ---- softmax


def _softmax(function):
    def check_forward(args, results):
        (x, dim, _), (y,) = args, results
        return _along(x, y, dim, lambda x: (function(x.double(), -1), 1.0))

    return check_forward


def _along(x: torch.Tensor, y: torch.Tensor, dim: int, compute, other: torch.Tensor | None = None) -> float:
    """Rows in blocks on the GPU, and a few of them on the CPU. compute(rows...) -> (reference,
    size of what was added)"""
    x, y = x.movedim(dim, -1).flatten(0, -2), y.movedim(dim, -1).flatten(0, -2)
    other = None if other is None else other.movedim(dim, -1).flatten(0, -2)
    rows, length = x.shape
    if x.dtype.itemsize * x.numel() > 2**33:  # of the largest, a sample
        chosen = torch.randint(0, rows, (512,)).unique()
        x, y, rows = x[chosen.cuda()], y[chosen.cuda()], len(chosen)
    worst, step = 0.0, max(1, _BLOCK // length)
    starts = [(s, min(s + step, rows), "cuda") for s in range(0, rows, step)]
    starts += [(r, r + 1, "cpu") for r in sorted({0, rows // 2, rows - 1})]
    for start, stop, device in starts:
        taken = [t[start:stop].to(device) for t in (x, other) if t is not None]
        reference, size = compute(*taken)
        # exp and log to some units of float, of what goes in too; and the order of the sum
        relative = 2.0**-19 if y.dtype.itemsize == 4 else 2.0**-16
        tolerance = relative * reference.abs() + 2.0**-22 * size
        worst = max(worst, _excess(y[start:stop].to(device), reference, tolerance))
    return worst


def _softmax_backward(args, results):
    (grad, out, dim, _), (y,) = args, results

    def compute(g, o):
        g, o = g.double(), o.double()
        added = g.abs() + (g * o).abs().sum(-1, keepdim=True)
        return o * (g - (g * o).sum(-1, keepdim=True)), o.abs() * added

    return _along(grad, y, dim, compute, out)


def _log_softmax_backward(args, results):
    (grad, out, dim, _), (y,) = args, results

    def compute(g, o):
        g, o = g.double(), o.double()
        # exp is exp2 of a product, whose error grows with its argument; for floats what follows is wide enough without
        growth = 1.0 if grad.dtype.itemsize == 4 else 1.0 + o.abs()
        return g - o.exp() * g.sum(-1, keepdim=True), g.abs() + growth * o.exp() * g.abs().sum(-1, keepdim=True)

    return _along(grad, y, dim, compute, out)


# ---- products


def _product(
    x: torch.Tensor, weight: torch.Tensor, bias, y: torch.Tensor, scale=None, exact_weight: bool = True
) -> float:
    """y [M, N] = x [M, K] weight [N, K]^T, times scale, plus bias. Whole on the GPU, some elements on the CPU.

    exact_weight: False if each weight times its scale was rounded to x's dtype.
    """
    k = x.shape[-1]
    # Sums in float32 in any order: some roundings of the whole, statistically.
    share = (4 + math.sqrt(k) / 2) * 2.0**-24
    share += 0.0 if exact_weight else torch.finfo(x.dtype).eps
    worst, step = 0.0, max(1, _BLOCK // max(1, k))
    wide = x.double()
    for start in range(0, weight.shape[0], step):
        w = weight[start : start + step].to(torch.float32).double()
        if scale is not None:
            w = w * (scale if scale.numel() == 1 else scale[start : start + step].view(-1, 1)).double()
        reference, size = wide @ w.t(), wide.abs() @ w.abs().t()
        if bias is not None:
            b = bias[start : start + step].double()
            reference, size = reference + b, size + b.abs()
        worst = max(worst, _excess(y[:, start : start + step], reference, share * size))
    for _ in range(_SAMPLES):
        m, n = (int(torch.randint(0, size, ())) for size in y.shape)
        a, w = x[m].cpu().double(), weight[n].to(torch.float32).cpu().double()
        if scale is not None:
            w = w * scale.flatten()[0 if scale.numel() == 1 else n].cpu().double()
        b = 0.0 if bias is None else bias[n].cpu().double()
        reference, size = (a * w).sum() + b, (a * w).abs().sum() + abs(b)
        worst = max(worst, _excess(y[m, n].cpu(), torch.as_tensor(reference), share * size))
    return worst


def _linear(args, results):
    (x, weight, bias), (y,) = args, results
    return _product(x.reshape(-1, x.shape[-1]), weight, bias, y.reshape(-1, y.shape[-1]))


def _grouped(args, results):
    (a, b, offs), (y,) = args, results
    if offs is None:
        return max(_product(a[g], b[g].mT, None, y[g]) for g in range(a.shape[0]))
    begin, worst = 0, 0.0
    for group, end in enumerate(offs.tolist()):
        rows = slice(begin, end)
        if a.dim() == 2 and b.dim() == 2:
            if begin == end:
                assert not y[group].any(), "an empty group is zero"
            else:
                worst = max(worst, _product(a[:, rows], b[rows].mT, None, y[group]))
        elif begin < end:
            one = (a[rows], b[group].mT, y[rows]) if a.dim() == 2 else (a[group], b[:, rows].mT, y[:, rows])
            worst = max(worst, _product(one[0], one[1], None, one[2]))
        begin = end
    if a.dim() == 2 and b.dim() == 3:
        assert not y[begin:].any(), "rows past the last end are zero"
    return worst


def _topk(args, results):
    (x, k), (values, indices) = args, results
    ordered, order = torch.sort(x.cpu(), dim=-1, descending=True, stable=True)
    _same_bits(values, ordered[..., :k].contiguous(), "topk values")
    return _same_bits(indices, order[..., :k].contiguous(), "topk indices")


def _histc(args, results):
    (x, bins, low, high), (counts,) = args, results
    values = x.cpu().long()
    low, high = (low, high) if low != high else (int(values.min()), int(values.max()))
    bin = ((values - low) * bins // (high - low)).clamp(max=bins - 1)
    wanted = torch.bincount(bin[(values >= low) & (values <= high)], minlength=bins).to(x.dtype)
    return _same_bits(counts, wanted, "histc")


# ---- FP8


def _fp8_linear(args, results):
    (x, weight, scale, bias), (y,) = args, results
    x = x.reshape(x.shape[:-1].numel(), x.shape[-1])
    few = x.shape[0] <= 16
    return _product(x, weight, bias, y.reshape(-1, y.shape[-1]), scale, exact_weight=few)


def _scaled_mm(args, results):
    (a, b, scale_a, scale_b, bias, _), (y,) = args, results
    x = a.to(torch.float32) * scale_a
    return _product(x, b.t(), bias, y, scale_b.flatten())


def _grad_input(args, results):
    (grad, weight, scale), (y,) = args, results
    factors = weight.float() if scale is None else weight.float() * scale.view(-1, 1)
    return _product(grad, factors.t(), None, y, exact_weight=False)


def _copy(args, results):
    (to, x), (y,) = args, results
    source = x.view(torch.uint8).cpu().view(x.dtype) if x.element_size() == 1 else x.cpu()
    if x.dtype != to.dtype and x.element_size() == 1:
        source = source.float()
    return _same_bits(y, _on_bytes(source.to(to.dtype), lambda t: t.expand(to.shape)), f"copy {x.dtype} to {to.dtype}")


def _on_bytes(x, move):
    return move(x.view(torch.uint8)).contiguous().view(x.dtype) if x.element_size() == 1 else move(x).contiguous()


def _scaled_mm_out(args, results):
    """An FP8 result is rounded to bfloat16 before, and saturates."""
    (a, b, scale_a, scale_b, _, out), (y,) = args, results
    if out.element_size() > 1:
        return _scaled_mm(args, results)
    wanted = (a.float().double() * scale_a) @ (b.float().double() * scale_b)
    wanted = wanted.clamp(-448, 448).cpu()
    place = torch.exp2(wanted.abs().clamp(min=2.0**-6).log2().floor() - 3)
    got = y.view(torch.uint8).cpu().view(y.dtype).double()
    return float(((got - wanted).abs() / (0.55 * place)).max())


def _cast(args, results):
    (x, dtype), (y,) = args, results
    source = x.view(torch.uint8).cpu().view(x.dtype) if x.element_size() == 1 else x.cpu()
    if x.element_size() == 1 and dtype.itemsize == 1:
        source = source.float()
    return _same_bits(y, source.to(dtype), f"cast {x.dtype} to {dtype}")


def _quantize(args, results):
    (x, dtype, per, scale), (y, own) = args, results
    if per == "block32":
        return _quantize_mx(x, y, own)
    x, own = x.cpu(), own.cpu()
    most = torch.finfo(dtype).max
    if scale is None:
        amax = x.abs().amax() if per == "tensor" else x.abs().flatten(1).amax(1, keepdim=True)
        wanted = amax.float() / most
        if not torch.allclose(own, torch.where(wanted == 0, 1.0, wanted), rtol=2**-22, atol=0.0):
            raise AssertionError("quantize: another scale")
    reciprocal = (1.0 / own).to(x.dtype)
    return _same_bits(y, (x * reciprocal).clamp(-most, most).to(dtype), "quantize")


def _quantize_mx(x, y, scales):
    rows, columns = x.shape
    blocks = x.cpu().float().view(rows, -1, 32)
    amax = blocks.abs().amax(-1, keepdim=True).double()
    exponent = torch.ceil(torch.log2(amax / 448.0)).clamp(-127, 127)
    values = (blocks.double() / torch.exp2(exponent)).float().clamp(-448, 448).to(torch.float8_e4m3fn)
    _same_bits(y, values.view(rows, columns), "mxfp8 values")
    row, block = torch.meshgrid(torch.arange(rows), torch.arange(columns // 32), indexing="ij")
    tiles = scales.shape[1] // 4
    at = (row // 128 * tiles + block // 4) * 512 + row % 32 * 16 + row // 32 % 4 * 4 + block % 4
    got = scales.view(torch.uint8).cpu().flatten()[at]
    return _same_bits(got, (exponent[..., 0] + 127).to(torch.uint8), "mxfp8 scales")


def _untiled(scales: torch.Tensor, rows: int, blocks: int) -> torch.Tensor:
    row, block = torch.meshgrid(torch.arange(rows), torch.arange(blocks), indexing="ij")
    at = (row // 128 * (scales.shape[1] // 4) + block // 4) * 512 + row % 32 * 16 + row // 32 % 4 * 4 + block % 4
    return scales.view(torch.uint8).cpu().flatten()[at]


def _dequantize(args, results):
    (x, scale, dtype), (y,) = args, results
    values = x.view(torch.uint8).cpu().view(x.dtype).float()
    if scale.dtype is torch.float8_e8m0fnu:
        rows, columns = x.shape
        factor = torch.exp2(_untiled(scale, rows, columns // 32).float() - 127).repeat_interleave(32, 1)
        return _same_bits(y, (values * factor).to(dtype), "mxfp8")
    factor = scale.cpu().to(dtype).float()
    return _same_bits(y, (values * (factor.view(-1, 1) if factor.numel() > 1 else factor)).to(dtype), "dequantize")


def _dequantize_nv(args, results):
    (x, whole, scales, dtype), (y,) = args, results
    rows, columns = x.shape
    table = torch.tensor([0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.0, -0.5, -1, -1.5, -2, -3, -4, -6])
    packed = x.cpu().long()
    values = torch.stack((table[packed >> 4], table[packed & 15]), -1).view(rows, 2 * columns)
    blocks = _untiled(scales, rows, columns // 8).view(torch.float8_e4m3fn).float()
    factor = (whole.cpu().to(dtype).float() * blocks).to(dtype).float().repeat_interleave(16, 1)
    return _same_bits(y, (values * factor).to(dtype), "nvfp4")


def _stochastic(args, results):
    """Between the two neighbours, and up as often as the distance says (the bits are compared on software Metal)."""
    (x, _), (y,) = args, results
    got, wanted = y.view(torch.uint8).cpu().view(torch.float8_e4m3fn).float(), x.cpu().half().float()
    place = torch.exp2(wanted.abs().clamp(min=2.0**-6).log2().floor() - 3)
    return float(((got - wanted).abs() / (place * 1.01)).max())


_CHECKS = {
    "constant_pad_nd": _pad,
    "_softmax": _softmax(torch.softmax),
    "_log_softmax": _softmax(torch.log_softmax),
    "_softmax_backward_data": _softmax_backward,
    "_log_softmax_backward_data": _log_softmax_backward,
    "_softmax.out": lambda args, results: _softmax(torch.softmax)(args[:3], results),
    "_log_softmax.out": lambda args, results: _softmax(torch.log_softmax)(args[:3], results),
    "linear": _linear,
    "_grouped_mm": _grouped,
    "topk": _topk,
    "histc": _histc,
    "fp8_linear": _fp8_linear,
    "fp8_grad_input": _grad_input,
    "scaled_mm": _scaled_mm,
    "scaled_mm.out": _scaled_mm_out,
    "copy_": _copy,
    "cast": _cast,
    "quantize": _quantize,
    "dequantize": _dequantize,
    "dequantize_nvfp4": _dequantize_nv,
    "stochastic_rounding": _stochastic,
}
