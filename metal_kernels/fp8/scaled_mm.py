"""aten::_scaled_mm and aten::_scaled_mm_v2 (F.scaled_mm): FP8 times FP8 with scales of tensors or rows.

Up to 16 rows of the first matrix: it is decoded once and meets the second in the fused GEMV. More: float32 products of
decoded blocks of both, so that the scales and the bias are applied before the one rounding to the output's dtype. A
block of either, and a product of two, takes 64 MiB at the most.
"""

from __future__ import annotations

import torch

from ..environment import stock
from ..kernel import ArgumentError
from .cast import cast, contiguous, decode
from .formats import MATRIX, WIDE, flat_scale
from .linear import MAX_ROWS, decoded_blocks, gemv

TENSOR_WISE, ROW_WISE = 0, 1  # torch.nn.functional.ScalingType
ALIGNMENT = 16  # of K and N: what upstream's kernels need, and a portable model file keeps to


def scaled_mm(
    a: torch.Tensor,
    b: torch.Tensor,
    scale_a: torch.Tensor,
    scale_b: torch.Tensor,
    bias: torch.Tensor | None = None,
    out_dtype: torch.dtype | None = None,
    scale_result: torch.Tensor | None = None,
) -> torch.Tensor:
    """(a * scale_a) @ (b * scale_b) + bias, over scale_result where the output is FP8.

    a, b               [M, K] and [K, N], float8_e4m3fn or one of them float8_e5m2, on mps, any strides; K and N
                       multiples of 16.
    scale_a, scale_b   float32, each one element or one a row of a, a column of b: [M, 1] and [1, N].
    bias               [N] or None; of out_dtype, or bf16 where that is FP8.
    out_dtype          fp32, fp16, bf16, or FP8 (None: a's dtype).
    scale_result       float32, one element. As torch's CPU kernel has it: an FP8 output is divided by it, any other
                       does not look at it.

    Raises what torch's CUDA kernel raises for anything else.
    """
    out_dtype = a.dtype if out_dtype is None else out_dtype
    _check(a, b, scale_a, scale_b, bias, out_dtype)
    (rows, cols), columns = a.shape, b.shape[1]
    wide = out_dtype if out_dtype in WIDE else torch.float32
    bias = None if bias is None else bias.to(wide)
    out = torch.empty(rows, columns, dtype=wide, device=a.device)
    scale_a, scale_b = flat_scale(scale_a, a.device), flat_scale(scale_b, a.device)
    if not out.numel():
        pass
    elif not cols:
        out.zero_() if bias is None else out.copy_(bias)
    elif rows <= MAX_ROWS:
        # Every value of both formats is a half.
        gemv(out, decode(contiguous(a), torch.float16), b.t(), scale_b, scale_a, bias)
    else:
        for top, left in decoded_blocks(a, torch.float32):
            bottom = top + left.shape[0]
            scale_left = (scale_a if scale_a.numel() == 1 else scale_a[top:bottom]).view(-1, 1)
            for first, block in decoded_blocks(b.t(), torch.float32, more=4 * left.shape[0]):
                end = first + block.shape[0]
                product = torch.mm(left, block.t())
                product.mul_(scale_left).mul_(scale_b if scale_b.numel() == 1 else scale_b[first:end])
                out[top:bottom, first:end].copy_(product if bias is None else product.add_(bias[first:end].float()))
    if out_dtype == wide:
        return out
    return cast(out if scale_result is None else out.div_(scale_result.view(())), out_dtype)


def supports(self: torch.Tensor, mat2: torch.Tensor, *args, **kwargs) -> bool:
    """Whether this aten::_scaled_mm is one of mps tensors. What is wrong with them, scaled_mm says itself."""
    return self.device.type == mat2.device.type == "mps"


def run(
    self, mat2, scale_a, scale_b, bias=None, scale_result=None, out_dtype=None, use_fast_accum=False
) -> torch.Tensor:
    """aten::_scaled_mm. use_fast_accum has no meaning here."""
    if scale_result is not None and (scale_result.numel() != 1 or scale_result.dtype is not torch.float32):
        raise ArgumentError(RuntimeError("scale_result must be a float scalar"))
    return _checked(self, mat2, scale_a, scale_b, bias, out_dtype, scale_result)


def run_out(self, mat2, scale_a, scale_b, *args, out: torch.Tensor, **kwargs) -> torch.Tensor:
    """aten::_scaled_mm.out."""
    if out.device != self.device:
        raise ArgumentError(RuntimeError(f"Expected out tensor to be on {self.device}, but it is on {out.device}"))
    result = run(self, mat2, scale_a, scale_b, *args, **kwargs)
    if out.dtype != result.dtype:
        raise ArgumentError(RuntimeError("out_dtype must match output matrix type"))
    out.resize_(result.shape)
    if out.dtype in WIDE:
        return out.copy_(result)
    out.view(torch.uint8).copy_(result.view(torch.uint8))
    return out


def supports_v2(
    self, mat2, scale_a, recipe_a, swizzle_a, scale_b, recipe_b, swizzle_b, bias, out_dtype, contraction_dim=(),
    use_fast_accum=False,
) -> bool:  # fmt: skip
    """Whether this aten::_scaled_mm_v2 is one of mps tensors with scales of tensors or rows. For other scales a torch
    that has the op says what is wrong with them; for one that has not, run_v2 does."""
    ours = _ours(scale_a, recipe_a, swizzle_a, scale_b, recipe_b, swizzle_b, contraction_dim)
    return supports(self, mat2) and (ours or not stock("scaled_mm_v2_op").good)


def _ours(scale_a, recipe_a, swizzle_a, scale_b, recipe_b, swizzle_b, contraction_dim) -> bool:
    """Scales of tensors or rows: one list entry each, not swizzled."""
    return (
        all(len(x) == 1 for x in (scale_a, scale_b, recipe_a, recipe_b))
        and {*recipe_a, *recipe_b} <= {TENSOR_WISE, ROW_WISE}
        and not any((*swizzle_a, *swizzle_b))
        and tuple(contraction_dim) in ((), (1, 0))
    )


def run_v2(
    self, mat2, scale_a, recipe_a, swizzle_a, scale_b, recipe_b, swizzle_b, bias, out_dtype, contraction_dim=(),
    use_fast_accum=False,
) -> torch.Tensor:  # fmt: skip
    """aten::_scaled_mm_v2."""
    if not _ours(scale_a, recipe_a, swizzle_a, scale_b, recipe_b, swizzle_b, contraction_dim):
        raise ArgumentError(
            ValueError(_refusal(self, mat2, scale_a, scale_b, (*swizzle_a, *swizzle_b), contraction_dim))
        )
    for scales, recipe in ((scale_a, recipe_a), (scale_b, recipe_b)):
        if recipe[0] == TENSOR_WISE and scales[0].numel() != 1:
            raise ArgumentError(ValueError(_configuration(self, mat2, scale_a[0], scale_b[0])))
    return _checked(self, mat2, scale_a[0], scale_b[0], bias, out_dtype or torch.bfloat16)


def _checked(a, b, scale_a, scale_b, bias, out_dtype, scale_result=None) -> torch.Tensor:
    """scaled_mm for the dispatcher: MPS has no stock kernel that would find the same fault."""
    try:
        _check(a, b, scale_a, scale_b, bias, a.dtype if out_dtype is None else out_dtype)
    except (RuntimeError, ValueError) as error:
        raise ArgumentError(error) from None
    return scaled_mm(a, b, scale_a, scale_b, bias, out_dtype, scale_result)


def _check(a, b, scale_a, scale_b, bias, out_dtype) -> None:
    """Torch's CUDA kernel's checks, in its order and words."""
    _require(a.dim() == 2, "mat1 must be a matrix")
    _require(b.dim() == 2, "mat2 must be a matrix")
    (m, k), (k_b, n) = a.shape, b.shape
    _require(k == k_b, f"mat1 and mat2 shapes cannot be multiplied ({m}x{k} and {k_b}x{n})")
    _require(_scales_fit(scale_a, m, (m, 1)) and _scales_fit(scale_b, n, (1, n)) and {a.dtype, b.dtype} <= MATRIX,
             _configuration(a, b, scale_a, scale_b), ValueError)  # fmt: skip
    _require(bias is None or bias.numel() == n, f"Bias must be size {n} but got {0 if bias is None else bias.numel()}")
    _require(k % ALIGNMENT == 0, f"Trailing dimension of mat1 must be divisible by 16 but got mat1 shape: ({m}x{k}).")
    _require(n % ALIGNMENT == 0, f"mat2 shape ({k}x{n}) must be divisible by 16")
    _require(torch.float8_e4m3fn in (a.dtype, b.dtype), "Multiplication of two Float8_e5m2 matrices is not supported")
    _require(out_dtype in WIDE or out_dtype in MATRIX, f"out_dtype must be a floating type, but got {out_dtype}")
    for tensor in (scale_a, scale_b, bias):
        _require(
            tensor is None or tensor.device == a.device,
            f"Expected all tensors to be on the same device, but found at least two devices, {a.device} and "
            f"{None if tensor is None else tensor.device}!",
        )
    if bias is not None:
        wanted = out_dtype if out_dtype in WIDE else torch.bfloat16
        _require(
            bias.dtype == wanted,
            f"Bias must be {_NAMES[wanted]} to compute {_name(out_dtype)} output, but got {_name(bias.dtype)}",
        )


_NAMES = {torch.float32: "Float32", torch.float16: "Float16", torch.bfloat16: "BFloat16"}


def _name(dtype: torch.dtype) -> str:
    """A dtype as C++ prints it."""
    names = {torch.float32: "Float", torch.float16: "Half", torch.bfloat16: "BFloat16"}
    return names.get(dtype) or str(dtype).removeprefix("torch.").capitalize()


def _scales_fit(scale: torch.Tensor, count: int, shape: tuple[int, int]) -> bool:
    if scale.dtype is not torch.float32:
        return False
    return scale.numel() == 1 or (scale.numel() == count and tuple(scale.shape) == shape)


def _configuration(a, b, scale_a, scale_b) -> str:
    m, n = a.shape[0], b.shape[-1]
    lines = [
        "Invalid scaling configuration.",
        "- For TensorWise scaling, a and b should be float8, scales should be float and singletons.",
        f"- For RowWise scaling, a and b should be float8, scales should be float, scale_a should be ({m}, 1) and "
        f"scale_b should be (1, {n}), and both should be contiguous.",
        f"Got {_described('a', a, scale_a)}, {_described('b', b, scale_b)}",
    ]
    return "\n".join(lines)


def _refusal(a, b, scale_a, scale_b, swizzles, contraction_dim) -> str:
    """What is wrong with scales, recipes, swizzles or dimensions that F.scaled_mm has elsewhere and not on MPS."""
    if any(swizzles):
        return "MPS does not support swizzle."
    if tuple(contraction_dim) not in ((), (1, 0)):
        dims = " and ".join(f"mat_{name}: {dim}" for name, dim in zip("ab", contraction_dim, strict=False))
        return f"mat_a and mat_b are multiplied over dimension 1 of mat_a and 0 of mat_b on MPS, not over {dims}"
    return _configuration(a, b, *(scales[0] if scales else None for scales in (scale_a, scale_b)))


def _described(name: str, matrix: torch.Tensor, scale: torch.Tensor | None) -> str:
    if scale is None:
        return f"mat_{name}.dtype()={_name(matrix.dtype)}, scale_{name}=None"
    return (
        f"mat_{name}.dtype()={_name(matrix.dtype)}, scale_{name}.dtype()={_name(scale.dtype)}, "
        f"scale_{name}.size()={list(scale.shape)}, scale_{name}.stride()={list(scale.stride())}"
    )


def _require(condition: bool, text: str, kind: type[Exception] = RuntimeError) -> None:
    if not condition:
        raise kind(text)
