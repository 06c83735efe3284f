"""_grouped_mm inside torch: gradients, modes, F.grouped_mm, and the errors of wrong arguments."""

import pytest
import torch


def error_of(call, *args, **kwargs):
    try:
        call(*args, **kwargs)
    except Exception as error:
        return type(error), str(error)
    return None


def operands(grouped, mode, dtype=torch.float32):
    """(a, b, offs) of each mode, with rows, columns or a piece of K past the last end."""
    ends = grouped.ends(3, 3, 17, 20)
    if mode == "rows":
        return grouped.random(24, 32, dtype=dtype), grouped.random(4, 40, 32, seed=1, dtype=dtype).mT, ends
    if mode == "columns":
        return grouped.random(4, 16, 32, dtype=dtype), grouped.random(24, 32, seed=1, dtype=dtype).t(), ends
    if mode == "K":
        return grouped.random(24, 16, dtype=dtype).t(), grouped.random(24, 40, seed=1, dtype=dtype), ends
    return grouped.random(3, 16, 32, dtype=dtype), grouped.random(3, 40, 32, seed=1, dtype=dtype).mT, None


@pytest.mark.parametrize("mode", ["rows", "columns", "K", "batches"])
def test_gradients(grouped, mode):
    """autograd's formula calls _grouped_mm again, in the other modes: three products, all of them ours."""
    a, b, offs = operands(grouped, mode)
    x, w = grouped.twin(a).requires_grad_(), grouped.twin(b).requires_grad_()
    before = grouped.taken
    y = torch._grouped_mm(x, w, offs=grouped.twin(offs))
    weights = grouped.random(*y.shape, seed=2)
    grad_x, grad_w = torch.autograd.grad(y, (x, w), grouped.twin(weights))
    assert grouped.taken == before + 3
    a, b = a.double().requires_grad_(), b.double().requires_grad_()
    if offs is None:
        expected = a @ b
    else:
        spans = list(zip([0, *offs.tolist()[:-1]], offs.tolist(), strict=True))
        if mode == "rows":
            parts = [a[i:j] @ b[g] for g, (i, j) in enumerate(spans)] + [torch.zeros(4, 40)]
        elif mode == "columns":
            parts = [a[g] @ b[:, i:j] for g, (i, j) in enumerate(spans)] + [torch.zeros(16, 4)]
        else:
            parts = [a[:, i:j] @ b[i:j] for i, j in spans]
        expected = torch.stack(parts) if mode == "K" else torch.cat(parts, dim=int(mode == "columns"))
    reference = torch.autograd.grad(expected, (a, b), weights.double())
    for actual, double in zip((grad_x, grad_w), reference, strict=True):
        torch.testing.assert_close(actual.cpu().double(), double, rtol=1e-5, atol=1e-5)


@pytest.mark.skipif(not hasattr(torch.nn.functional, "grouped_mm"), reason="this torch has no F.grouped_mm")
def test_the_public_function(grouped, close):
    a, b, offs = operands(grouped, "rows", torch.bfloat16)
    before = grouped.taken
    y = torch.nn.functional.grouped_mm(grouped.twin(a), grouped.twin(b), offs=grouped.twin(offs))
    assert grouped.taken == before + 1
    close(y, a, b, offs)


def test_modes_around_a_call(grouped, close):
    a, b, offs = operands(grouped, "rows")
    twins = [grouped.twin(t) for t in (a, b, offs)]
    with torch.inference_mode():
        y = torch._grouped_mm(twins[0], twins[1], offs=twins[2])
        assert y.is_inference()
        close(y.clone(), a, b, offs)
    with torch.device("mps"), torch.no_grad():
        y = torch._grouped_mm(twins[0], twins[1], offs=twins[2])
    close(y, a, b, offs)
    before = grouped.taken
    for out_dtype in (None, torch.float32):
        close(torch._grouped_mm(*twins[:2], twins[2], None, out_dtype), a, b, offs)
    assert grouped.taken == before + 2


WRONG = {
    "float64": (((4, 16), torch.float64), ((2, 16, 8), torch.float32), (2, 4)),
    "mixed dtypes": (((4, 16), torch.float32), ((2, 16, 8), torch.float16), (2, 4)),
    "integers": (((4, 16), torch.int32), ((2, 16, 8), torch.int32), (2, 4)),
    "no ends": (((4, 16), torch.float32), ((2, 16, 8), torch.float32), None),
    "ends of batches": (((2, 4, 16), torch.float32), ((2, 16, 8), torch.float32), (2, 4)),
    "number of ends": (((4, 16), torch.float32), ((3, 16, 8), torch.float32), (2, 4)),
    "number of ends of columns": (((3, 4, 16), torch.float32), ((16, 8), torch.float32), (2, 4)),
    "K": (((4, 16), torch.float32), ((2, 24, 8), torch.float32), (2, 4)),
    "batches": (((3, 4, 16), torch.float32), ((2, 16, 8), torch.float32), None),
    "stride of a": (((4, 15), torch.float32), ((2, 15, 8), torch.float32), (2, 4)),
    "stride of b": (((4, 16), torch.float16), ((2, 16, 12), torch.float16), (2, 4)),
    "rank of a": (((16,), torch.float32), ((2, 16, 8), torch.float32), (2, 4)),
    "rank of b": (((4, 16), torch.float32), ((1, 2, 16, 8), torch.float32), (2, 4)),
}


def call_with(grouped, a, b, offs, *rest, device):
    twin = grouped.twin if device == "mps" else lambda t: t
    return error_of(torch._grouped_mm, twin(a), twin(b), twin(offs), *map(twin, rest))


@pytest.mark.parametrize("case", WRONG)
def test_wrong_arguments_raise_what_the_cpu_raises(grouped, case):
    (a_sizes, a_dtype), (b_sizes, b_dtype), ends = WRONG[case]
    a, b = torch.ones(a_sizes, dtype=a_dtype), torch.ones(b_sizes, dtype=b_dtype)
    if a_dtype is torch.float64:
        return wrong_dtype(grouped, b, ends)
    offs = None if ends is None else grouped.ends(*ends)
    expected = call_with(grouped, a, b, offs, device="cpu")
    before = grouped.taken
    actual = call_with(grouped, a, b, offs, device="mps")
    assert expected is not None and same(actual, expected)
    assert grouped.taken == before


def wrong_dtype(grouped, b, ends):
    """MPS has no float64: complex64 stands for what is no matrix of floats."""
    a = torch.ones(4, 16, dtype=torch.complex64)
    expected = call_with(grouped, a, b, grouped.ends(*ends), device="cpu")
    assert expected is not None and same(call_with(grouped, a, b, grouped.ends(*ends), device="mps"), expected)


def same(actual, expected):
    """The same error; torch says in few of its own texts which device it was."""
    return actual is not None and actual[0] is expected[0] and actual[1].split("\n")[0] == expected[1].split("\n")[0]


def test_other_wrong_arguments_raise_what_the_cpu_raises(grouped):
    a, b, offs = torch.ones(4, 16), torch.ones(2, 16, 8), grouped.ends(2, 4)
    cases = [
        (a, b, offs.long()), (a, b, offs.view(1, 2)), (a, b, offs, torch.ones(8)), (a, b, offs, None, torch.bfloat16),
        (torch.ones(4, 32)[:, ::2], b, offs), (a, torch.ones(2, 16, 16)[..., ::2], offs),
        (torch.ones(1, 16).expand(4, 16), b, offs),
    ]  # fmt: skip
    for case in cases:
        expected = call_with(grouped, *case, device="cpu")
        before = grouped.taken
        assert expected is not None and same(call_with(grouped, *case, device="mps"), expected), case
        assert grouped.taken == before


def test_a_tensor_elsewhere_is_stocks(grouped):
    a, b, offs = (grouped.twin(t) for t in operands(grouped, "rows"))
    before = grouped.taken
    for changed in ((a.cpu(), b), (a, b.cpu()), (a.to("meta"), b)):
        with grouped.metal_kernels.using(grouped_mm="off"):
            expected = error_of(torch._grouped_mm, *changed, offs=offs)
        assert error_of(torch._grouped_mm, *changed, offs=offs) == expected
    assert grouped.taken == before
