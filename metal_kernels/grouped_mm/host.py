"""aten::_grouped_mm on MPS: what is taken, the output, and the launch.

Which kernel runs is geometry.py's choice, the arithmetic is grouped_mm.metal's, in float. offs is read by the kernels
only: nothing here waits for the device. A call is one allocation and one launch; where only the layout of a few rows
keeps the weights from being read in vectors, those rows are copied first: they are small.
"""

from __future__ import annotations

from pathlib import Path

import torch

from ..shader import ShaderLibrary
from .geometry import LENGTH, NOTHING, ROWS, VECTOR_BYTES, Problem, Strided, fits, has_few_rows, has_vectors, plan

LIBRARY = ShaderLibrary(Path(__file__).with_name("grouped_mm.metal"))

# dtypes -> their name in grouped_mm.metal
NAMES = {torch.float32: "float", torch.float16: "half", torch.bfloat16: "bfloat"}
DTYPES = tuple(NAMES)


def grouped_mm(
    a: torch.Tensor,
    b: torch.Tensor,
    offs: torch.Tensor | None = None,
    bias: torch.Tensor | None = None,
    out_dtype: torch.dtype | None = None,
) -> torch.Tensor:
    """The products of groups of a and b, in a's dtype; sums in float, rounded once.

    a [M, K], b [G, K, N]      rows of a in groups: row i is multiplied by b[g], offs[g - 1] <= i < offs[g]  -> [M, N]
    a [G, M, K], b [K, N]      columns of b in groups                                                       -> [M, N]
    a [M, K], b [K, N]         K in groups                                                                  -> [G, M, N]
    a [G, M, K], b [G, K, N]   no offs: a product for each                                                  -> [G, M, N]

    a, b       float32, float16 or bfloat16, of one dtype, on mps. Of the last two dimensions one has stride 1, and the
               other's stride is a multiple of 16 bytes. A b of experts [G, N, K], transposed, is read as it lies.
    offs       int32 [G] on mps, or None: where each group ends. Read on the device, clamped to [0, size]; groups may be
               empty; an end before an earlier one makes an empty group. Rows (columns) past the last end are 0.
    bias, out_dtype   None, and None or a's dtype, as torch allows no others.

    The rows of the result start on multiples of 16 bytes, as torch's own do. Not differentiable by itself: autograd
    lies above the dispatcher's MPS key. Raises ValueError for anything else.
    """
    if not supports(a, b, offs, bias, out_dtype):
        raise ValueError(
            "grouped_mm takes float32, float16 or bfloat16 matrices of one dtype on mps, with offs where one of them "
            f"has two dimensions; not {_described(a)}, {_described(b)}, offs={_described(offs)}, "
            f"bias={_described(bias)}, {out_dtype=}"
        )
    return compute(a, b, offs)


def supports(
    self: torch.Tensor,
    mat2: torch.Tensor,
    offs: torch.Tensor | None = None,
    bias: torch.Tensor | None = None,
    out_dtype: torch.dtype | None = None,
) -> bool:
    """Whether compute() takes this call. Refused, so that stock raises: what the CPU's _grouped_mm refuses."""
    dtype = self.dtype
    if dtype not in NAMES or mat2.dtype is not dtype or bias is not None or out_dtype not in (None, dtype):
        return False
    if not (_is_plain(self) and _is_plain(mat2) and has_layout(self) and has_layout(mat2)):
        return False
    if self.shape[-1] != mat2.shape[-2]:
        return False
    if self.dim() == mat2.dim() == 3:
        return offs is None and self.shape[0] == mat2.shape[0] and fits(_problem(self, mat2, offs))
    if offs is None or offs.dim() != 1 or offs.dtype is not torch.int32 or not _is_plain(offs):
        return False
    experts = self if self.dim() == 3 else mat2
    return (experts.dim() == 2 or experts.shape[0] == offs.shape[0]) and fits(_problem(self, mat2, offs))


def run(
    self: torch.Tensor,
    mat2: torch.Tensor,
    offs: torch.Tensor | None = None,
    bias: torch.Tensor | None = None,
    out_dtype: torch.dtype | None = None,
) -> torch.Tensor:
    """aten::_grouped_mm, for arguments that supports() has accepted."""
    return compute(self, mat2, offs)


def _is_plain(x: object) -> bool:
    return isinstance(x, torch.Tensor) and x.is_mps and x.layout is torch.strided and not x.is_neg()


def has_layout(x: torch.Tensor) -> bool:
    """The strides that torch's own kernels take: adjacent elements one way, and multiples of 16 bytes the other way."""
    if x.dim() not in (2, 3):
        return False
    (rows, columns), (down, across) = x.shape[-2:], x.stride()[-2:]
    if down == 1 and across >= max(1, rows):
        stride = across
    elif across == 1 and down >= max(1, columns):
        stride = down
    else:
        return False
    return stride * x.element_size() % VECTOR_BYTES == 0


def _described(x: object) -> str:
    return f"{tuple(x.shape)} {x.dtype} on {x.device}" if isinstance(x, torch.Tensor) else str(x)


def _problem(a: torch.Tensor, b: torch.Tensor, offs: torch.Tensor | None) -> Problem:
    rows, length, outputs = a.shape[-2], a.shape[-1], b.shape[-1]
    groups = offs.shape[0] if offs is not None else a.shape[0]
    if a.dim() == 2 and b.dim() == 3:
        return Problem(ROWS, rows, outputs, length, groups)
    if a.dim() == 3 and b.dim() == 2:  # y transposed: the groups are of b's columns, and a is the weight
        return Problem(ROWS, outputs, rows, length, groups)
    return Problem(LENGTH if a.dim() == 2 else NOTHING, rows, outputs, length, groups)


def compute(
    a: torch.Tensor, b: torch.Tensor, offs: torch.Tensor | None = None, form: str | None = None
) -> torch.Tensor:
    """grouped_mm(), arguments unchecked. form: see geometry.plan()."""
    problem = _problem(a, b, offs)
    vector = VECTOR_BYTES // a.element_size()
    y = output_of(a, b, offs)
    if not y.numel():
        return y
    if not (problem.length and problem.groups):  # nothing to add up
        return y.zero_()
    x, weight, result = (a, b.mT, y) if a.dim() == 2 or b.dim() == 3 else (b.mT, a, y.mT)
    weight_view, x_view = _strided(weight, vector), _strided(x, vector)
    if (
        form in (None, "vectors") and has_few_rows(problem)
        and has_vectors(weight_view, vector, problem.groups) and not has_vectors(x_view, vector)
    ):  # fmt: skip
        # The weights decide; x is small enough to be copied into rows that start on 16 bytes.
        x = _aligned(x, vector)
        x_view = _strided(x, vector)
    launch = plan(
        problem, x_view, weight_view, _strided(result, 1), 0 if offs is None else offs.stride(0), vector, form,
    )  # fmt: skip
    # Where there are no offs, something aligned has to be bound, and is not read.
    LIBRARY.launch(
        f"grouped_{launch.form}_{NAMES[a.dtype]}{launch.layout}", x, weight, y if offs is None else offs, y,
        launch.header, threads=launch.threads, group_size=launch.group_size,
    )  # fmt: skip
    return y


def output_of(a: torch.Tensor, b: torch.Tensor, offs: torch.Tensor | None) -> torch.Tensor:
    """An empty result of a and b, on their device: its rows start on multiples of 16 bytes."""
    rows, outputs = a.shape[-2], b.shape[-1]
    vector = VECTOR_BYTES // a.element_size()
    padded = -(-outputs // vector) * vector
    if a.dim() != b.dim():
        return torch.empty_strided((rows, outputs), (padded, 1), dtype=a.dtype, device=a.device)
    groups = a.shape[0] if offs is None else offs.shape[0]
    return torch.empty_strided((groups, rows, outputs), (rows * padded, padded, 1), dtype=a.dtype, device=a.device)


def _aligned(x: torch.Tensor, vector: int) -> torch.Tensor:
    rows, length = x.shape
    padded = -(-length // vector) * vector
    copy = torch.empty_strided((rows, length), (padded, 1), dtype=x.dtype, device=x.device)
    return copy.copy_(x)


def _strided(x: torch.Tensor, vector: int) -> Strided:
    group = x.stride(0) if x.dim() == 3 else 0
    return Strided(group, x.stride(-2), x.stride(-1), x.storage_offset() % vector)
