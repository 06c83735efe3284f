"""The self-check of linear: every kernel of linear.metal against the CPU in float64."""

from __future__ import annotations

import torch

from ..selfcheck import expect_close, generator
from .geometry import TILES, TWO_BYTES
from .host import compute

OUTPUTS, LENGTH = 21, 2608  # no multiple of a tile; a length of whole vectors, which several SIMD-groups share
# Of values of about 1: twice the rounding of the output, which for float32 drowns in that of the sums.
TOLERANCE = {torch.float32: 4e-6, torch.float16: 1e-3, torch.bfloat16: 8e-3}


def selfcheck(dtype: torch.dtype) -> None:
    """Every form and tile for `dtype`. Raises SelfCheckFailure."""
    source = generator()

    def random(*sizes: int) -> torch.Tensor:
        return torch.randn(sizes, dtype=torch.float64, device="cpu", generator=source).to(dtype)

    x, weight, bias = random(16, LENGTH), random(OUTPUTS, LENGTH) / LENGTH, random(OUTPUTS)
    expected = torch.nn.functional.linear(x.double(), weight.double(), bias.double()).to(dtype)
    x, weight, bias = x.to("mps"), weight.to("mps"), bias.to("mps")
    tolerance = TOLERANCE[dtype]
    for form, tiles in TILES.items():
        if form in TWO_BYTES and dtype.itemsize != 2:
            continue  # of types of two bytes
        laid_out = weight.t().contiguous().t() if form == "columns" else weight
        for rows in [tile.rows - tile.rows // 4 for tile in tiles] + [16]:
            y = compute(x[:rows], laid_out, bias, form=form)
            expect_close(y, expected[:rows], f"{form}, {rows} rows", rtol=tolerance, atol=tolerance)
