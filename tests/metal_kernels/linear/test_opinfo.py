"""PyTorch's own samples of nn.functional.linear."""

import torch


def samples(dtype: torch.dtype):
    from torch.testing._internal.common_methods_invocations import op_db

    (op,) = (op for op in op_db if op.name == "nn.functional.linear")
    for requires_grad in (False, True):
        for sample in op.sample_inputs("cpu", dtype, requires_grad):
            yield op, sample


def test_every_sample(lin, close):
    checked = ours = 0
    for dtype in lin.dtypes:
        for op, sample in samples(dtype):
            tensors = [sample.input, *sample.args]
            assert not sample.kwargs
            twins = [lin.twin(t.detach()).requires_grad_(t.requires_grad) for t in tensors]
            before = lin.taken
            y = op(*twins)
            rows = sample.input.shape[:-1].numel()
            assert lin.taken - before == (rows <= 16), (dtype, sample)
            close(y, *tensors, what=(dtype, sample))
            if sample.input.requires_grad:
                gradients = torch.autograd.grad(y.sum(), twins)
                expected = torch.autograd.grad(op(*(t.double() for t in tensors)).sum(), tensors)
                for actual, reference in zip(gradients, expected, strict=True):
                    torch.testing.assert_close(actual.cpu(), reference, rtol=2e-2, atol=2e-2)
            checked += 1
            ours += lin.taken - before
    assert checked > 30 and ours > 20
