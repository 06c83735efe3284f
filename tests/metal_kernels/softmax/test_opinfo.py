"""PyTorch's own samples of softmax and log_softmax, with and without a dtype, forward and backward."""

import pytest
import torch

OPS = (("softmax", ""), ("softmax", "with_dtype"), ("log_softmax", ""), ("log_softmax", "with_dtype"))
# torch.testing's own tolerances of a reduction, by the dtype that was computed in.
TOLERANCE = {torch.float32: 2e-6, torch.float16: 2e-3, torch.bfloat16: 1.6e-2}


def opinfo(name: str, variant: str):
    from torch.testing._internal.common_methods_invocations import op_db

    (op,) = (op for op in op_db if op.name in (name, f"nn.functional.{name}") and op.variant_test_name == variant)
    return op


@pytest.mark.parametrize("name, variant", OPS)
def test_every_sample(softmaxing, name, variant):
    op = opinfo(name, variant)
    checked = 0
    for dtype in (*softmaxing.dtypes, torch.int32, torch.bool) if variant else softmaxing.dtypes:
        for sample in op.sample_inputs("cpu", dtype, requires_grad=dtype.is_floating_point):
            # MPS has no float64; what the sample asks of it is asked of float32.
            wanted = {key: torch.float32 if value is torch.float64 else value for key, value in sample.kwargs.items()}
            source = sample.input.detach().double().requires_grad_()
            expected = op(source, *sample.args, **{**wanted, **_double(wanted)})
            x = softmaxing.twin(sample.input.detach()).requires_grad_(sample.input.requires_grad)
            before = softmaxing.taken
            actual = op(x, *sample.args, **wanted)
            computed = wanted.get("dtype") or dtype
            assert softmaxing.taken == before + 1, (dtype, sample)
            assert actual.dtype == computed
            compare(actual, expected, computed)
            if sample.input.requires_grad:
                weights = softmaxing.random(expected.shape, computed, seed=2)
                (gradient,) = torch.autograd.grad(actual, x, softmaxing.twin(weights))
                assert softmaxing.taken == before + 2
                compare(gradient, torch.autograd.grad(expected, source, weights.double())[0], dtype)
            checked += 1
    assert checked >= 21


def _double(kwargs):
    return {"dtype": torch.float64} if "dtype" in kwargs else {}


def compare(actual, expected, dtype):
    assert actual.shape == expected.shape
    tolerance = TOLERANCE[dtype]
    torch.testing.assert_close(actual.detach().cpu().double(), expected.detach(), rtol=tolerance, atol=tolerance)
