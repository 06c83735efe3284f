"""The softmax kernels, installed on the software device with torch 2.13's stock beneath it (on a Mac: on the GPU)."""

import pytest
import torch
from family import Family, installed


class Softmaxing(Family):
    """With the comparison with the CPU in float64."""

    @staticmethod
    def random(sizes, dtype=torch.float32, seed: int = 0, scale: float = 3.0) -> torch.Tensor:
        """Scores such as an attention has them."""
        return (scale * torch.randn(sizes, generator=torch.Generator().manual_seed(seed))).to(dtype)

    def check(self, x: torch.Tensor, dim: int, *, form: str | None = None, half_to_float: bool = False) -> None:
        """All four kernels on `x`, as strided as it is, against the CPU in float64.

        Through torch, and none of them may go to stock; with `form` through host.compute(), whose form is forced.
        """
        what = (tuple(x.shape), x.stride(), x.storage_offset(), x.dtype, dim, form)
        dtype = torch.float32 if half_to_float else x.dtype
        for name in ("softmax", "log_softmax"):
            y = self.run(name, (self.twin(x),), dim, dtype, form)
            self.assert_close(name, y, x, dim, half_to_float, what=(name, *what))
            # The gradient's layout is x's: strided in the same way.
            result = getattr(torch, name)(x.double(), dim)
            strides = x.stride() if not is_expanded(x) else result.contiguous().stride()
            output = torch.empty_strided(x.shape, strides, dtype=dtype).copy_(result)
            grad, backward = self.random(x.shape, dtype, seed=1), f"{name}_backward"
            gradient = self.run(backward, (self.twin(grad), self.twin(output)), dim, x.dtype, form)
            self.assert_close(backward, gradient, grad, output, dim, x.dtype, what=(backward, *what))

    def run(self, name, inputs, dim, dtype, form=None):
        """The op through torch, or with `form` through host.compute()."""
        if form is not None:
            return self.modules.host.compute(name, inputs, dim, dtype, form=form)
        before = self.taken
        if len(inputs) == 1:
            result = getattr(torch, f"_{name}")(*inputs, dim, inputs[0].dtype != dtype)
        else:
            result = getattr(torch, f"_{name}_data")(*inputs, dim, dtype)
        assert self.taken == before + 1, ("went to stock", name, inputs[0].shape, inputs[0].stride(), dim)
        return result


def is_expanded(x):
    return any(stride == 0 and size > 1 for size, stride in zip(x.shape, x.stride(), strict=True))


@pytest.fixture(scope="module")
def softmaxing():
    with installed("softmax") as installation:
        yield Softmaxing(installation, "softmax", ("geometry", "host", "check", "bench"))
