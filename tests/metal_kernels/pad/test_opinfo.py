"""PyTorch's own samples of the op."""

import pytest
import torch

OPS = {"constant_pad_nd": "", "nn.functional.pad": "constant"}


def samples(name: str, variant: str, dtype: torch.dtype):
    from torch.testing._internal.common_methods_invocations import op_db

    (op,) = (op for op in op_db if op.name == name and op.variant_test_name == variant)
    if dtype not in op.supported_dtypes("cpu"):
        return
    for requires_grad in (False, True) if dtype.is_floating_point or dtype.is_complex else (False,):
        for sample in op.sample_inputs("cpu", dtype, requires_grad):
            yield op, sample


@pytest.mark.filterwarnings("ignore:ComplexHalf support is experimental")
@pytest.mark.parametrize("name", OPS)
def test_every_sample(padding, name):
    checked = 0
    for dtype in padding.dtypes:
        for op, sample in samples(name, OPS[name], dtype):
            expected = op(sample.input, *sample.args, **sample.kwargs)
            x = padding.twin(sample.input.detach()).requires_grad_(sample.input.requires_grad)
            before = padding.taken
            actual = op(x, *sample.args, **sample.kwargs)
            assert padding.taken == before + 1, (dtype, sample)
            padding.assert_same(actual, expected, (dtype, sample))
            if sample.input.requires_grad:
                ones = torch.ones_like(expected)
                (grad,) = torch.autograd.grad(actual, x, padding.twin(ones))
                (reference,) = torch.autograd.grad(expected, sample.input, ones)
                padding.assert_same(grad, reference, (dtype, sample, "gradient"))
            checked += 1
    assert checked > 50
