"""torch._scaled_mm and F.scaled_mm, which MPS lacks, against float64."""

import pytest
import torch
import torch.nn.functional as F

E4M3, E5M2 = torch.float8_e4m3fn, torch.float8_e5m2
WIDE = (torch.float32, torch.float16, torch.bfloat16)


def operands(m, k, n, a=E4M3, b=E4M3):
    generator = torch.Generator().manual_seed(m + k + n)
    return torch.randn(m, k, generator=generator).to(a), torch.randn(n, k, generator=generator).to(b).t()


def scales(m, n, kind_a, kind_b):
    generator = torch.Generator().manual_seed(5)
    make = {
        "tensor": lambda shape: torch.rand((), generator=generator),
        "row": lambda shape: torch.rand(shape, generator=generator),
    }
    return make[kind_a]((m, 1)) + 0.5, make[kind_b]((1, n)) + 0.5


def exact(a, b, scale_a, scale_b, bias=None):
    result = a.float().double() @ b.float().double() * scale_a.double() * scale_b.double()
    return result if bias is None else result + bias.double()


def assert_close(actual, expected, a, b):
    """One rounding to the output's dtype, and float32's error of the sum."""
    bound = expected.abs() * torch.finfo(actual.dtype).eps + (a.float().abs() @ b.float().abs()).double() * 2.0**-19
    assert actual.shape == expected.shape
    assert ((actual.cpu().double() - expected).abs() <= bound).all()


@pytest.mark.parametrize("m", (1, 3, 16, 17, 40))
@pytest.mark.parametrize(
    "kinds", (("tensor", "tensor"), ("row", "row"), ("tensor", "row"), ("row", "tensor")), ids="-".join
)
def test_values(fp8, no_faults, m, kinds):
    """Where one has a scale of its rows and the other one of all of it, too."""
    k, n = 96, 48
    for dtypes in ((E4M3, E4M3), (E4M3, E5M2), (E5M2, E4M3)):
        a, b = operands(m, k, n, *dtypes)
        scale_a, scale_b = scales(m, n, *kinds)
        for out in WIDE:
            bias = torch.randn(n, generator=torch.Generator().manual_seed(1)).to(out)
            before = fp8.taken
            call = (fp8.twin(a), fp8.twin(b), scale_a.to("mps"), scale_b.to("mps"))
            actual = torch._scaled_mm(*call, out_dtype=out)
            assert actual.dtype == out and actual.is_contiguous()
            assert_close(actual, exact(a, b, scale_a, scale_b), a, b)
            assert_close(
                torch._scaled_mm(*call, bias.to("mps"), out_dtype=out), exact(a, b, scale_a, scale_b, bias), a, b
            )
            assert fp8.taken >= before + 2


def test_layouts(fp8, no_faults):
    for m in (3, 20):
        a, b = operands(m, 64, 32)
        for x, y in (
            (a, b.contiguous()),
            (a.t().contiguous().t(), b),
            (operands(2 * m, 64, 32)[0][::2], operands(m, 80, 32)[1][16:]),
        ):
            actual = torch._scaled_mm(fp8.twin(x), fp8.twin(y), one(), one(), out_dtype=torch.float32)
            assert_close(actual, exact(x, y, torch.ones(()), torch.ones(())), x, y)


def one():
    return torch.ones((), device="mps")


def test_large_weight_in_blocks(fp8, no_faults, monkeypatch):
    monkeypatch.setattr(fp8.modules.linear, "MAX_SCRATCH", 64 * 4 * 10)
    a, b = operands(20, 64, 48)
    scale_a, scale_b = scales(20, 48, "row", "row")
    bias = torch.randn(48, generator=torch.Generator().manual_seed(2))
    actual = fp8.family.scaled_mm(
        fp8.twin(a), fp8.twin(b), scale_a.to("mps"), scale_b.to("mps"), bias.to("mps"), torch.float32
    )
    assert_close(actual, exact(a, b, scale_a, scale_b, bias), a, b)


def test_fp8_results(fp8, no_faults):
    a, b = operands(5, 32, 16)
    for out in (None, E4M3, E5M2):
        actual = torch._scaled_mm(fp8.twin(a), fp8.twin(b), one(), one(), out_dtype=out)
        expected = exact(a, b, torch.ones(()), torch.ones(())).float().to(out or E4M3)
        assert actual.dtype == (out or E4M3)
        assert torch.equal(fp8.bits(actual), fp8.bits(expected))
    into = torch.empty(0, device="mps")
    torch._scaled_mm(fp8.twin(a), fp8.twin(b), one(), one(), out_dtype=torch.float32, out=into)
    assert_close(into, exact(a, b, torch.ones(()), torch.ones(())), a, b)


def test_empty(fp8, no_faults):
    zero = torch.zeros(0, 32, dtype=torch.uint8).view(E4M3)
    _, b = operands(1, 32, 16)
    assert torch._scaled_mm(fp8.twin(zero), fp8.twin(b), one(), one(), out_dtype=torch.float32).shape == (0, 16)
    nothing = torch.zeros(4, 0, dtype=torch.uint8).view(E4M3)
    actual = torch._scaled_mm(
        fp8.twin(nothing), fp8.twin(nothing).new_empty(16, 0).t(), one(), one(), out_dtype=torch.float32
    )
    assert actual.shape == (4, 16) and not actual.cpu().any()


@pytest.mark.skipif(not hasattr(F, "scaled_mm"), reason="torch before 2.10 has no F.scaled_mm")
@pytest.mark.parametrize("m", (2, 20))
def test_scaled_mm_v2(fp8, no_faults, m):
    tensor, row = F.ScalingType.TensorWise, F.ScalingType.RowWise
    a, b = operands(m, 64, 32)
    for kinds, recipes in (
        (("tensor", "tensor"), (tensor, tensor)),
        (("row", "row"), (row, row)),
        (("tensor", "row"), (tensor, row)),
    ):
        scale_a, scale_b = scales(m, 32, *kinds)
        before = fp8.taken
        for out in WIDE:
            actual = F.scaled_mm(
                fp8.twin(a), fp8.twin(b), scale_a.to("mps"), recipes[0], scale_b.to("mps"), recipes[1], output_dtype=out
            )
            assert actual.dtype == out
            assert_close(actual, exact(a, b, scale_a, scale_b), a, b)
        assert fp8.taken >= before + 3
        bias = torch.randn(32).bfloat16()
        actual = F.scaled_mm(
            fp8.twin(a), fp8.twin(b), scale_a.to("mps"), recipes[0], scale_b.to("mps"), recipes[1], bias=bias.to("mps")
        )
        assert_close(actual, exact(a, b, scale_a, scale_b, bias), a, b)


def wrong_calls():
    """(what, error, words, arguments of torch._scaled_mm): a [16, 32], b [32, 48]."""
    a, b = operands(16, 32, 48)
    s = torch.ones(())
    bf = {"out_dtype": torch.bfloat16}
    yield "K", RuntimeError, r"Trailing dimension of mat1 must be divisible by 16 but got mat1 shape: \(16x17\)", (
        *operands(16, 17, 48), s, s), bf  # fmt: skip
    yield "N", RuntimeError, r"mat2 shape \(32x17\) must be divisible by 16", (*operands(16, 32, 17), s, s), bf
    yield "shapes", RuntimeError, r"mat1 and mat2 shapes cannot be multiplied \(16x32 and 48x48\)", (
        a, operands(1, 48, 48)[1], s, s), bf  # fmt: skip
    yield "vector", RuntimeError, "mat1 must be a matrix", (a[0], b, s, s), bf
    yield "scale dtype", ValueError, "Invalid scaling configuration", (a, b, s.half(), s), bf
    yield "scale size", ValueError, "Invalid scaling configuration", (a, b, torch.ones(3), s), bf
    yield "scale shape", ValueError, "Invalid scaling configuration", (a, b, torch.ones(1, 16), s), bf
    yield "dtype", ValueError, "Invalid scaling configuration", (a, b.float(), s, s), bf
    yield "e5m2 twice", RuntimeError, "Multiplication of two Float8_e5m2 matrices", (
        *operands(16, 32, 48, E5M2, E5M2), s, s), bf  # fmt: skip
    yield "bias size", RuntimeError, "Bias must be size 48 but got 47", (a, b, s, s, torch.ones(47).bfloat16()), bf
    yield "bias dtype", RuntimeError, "Bias must be BFloat16 to compute BFloat16 output, but got Float", (
        a, b, s, s, torch.ones(48)), bf  # fmt: skip
    yield (
        "scale_result",
        RuntimeError,
        "scale_result must be a float scalar",
        (a, b, s, s),
        {**bf, "scale_result": torch.ones(2)},
    )
    yield "out_dtype", RuntimeError, "out_dtype must be a floating type", (a, b, s, s), {"out_dtype": torch.int8}


@pytest.mark.parametrize("call", list(wrong_calls()), ids=lambda call: call[0])
def test_errors(fp8, call):
    _, kind, words, arguments, options = call
    arguments = [fp8.twin(x) for x in arguments]
    options = {name: value.to("mps") if isinstance(value, torch.Tensor) else value for name, value in options.items()}
    before = fp8.taken
    with pytest.raises(kind, match=words):
        torch._scaled_mm(*arguments, **options)
    assert fp8.taken == before
    assert fp8.installation.switches["fp8"].failure is None, "the arguments were at fault, not the kernel"


def test_a_scale_on_another_device(fp8):
    a, b = operands(16, 32, 48)
    with pytest.raises(RuntimeError, match="same device"):
        torch._scaled_mm(fp8.twin(a), fp8.twin(b), torch.ones(1), one(), out_dtype=torch.bfloat16)


def test_without_the_kernel_the_op_is_missing(fp8):
    """No stock kernel is a normal state: the dispatcher's own words."""
    a, b = operands(16, 32, 48)
    fp8.installation.set_mode(fp8="off")
    try:
        with pytest.raises(NotImplementedError, match="Could not run 'aten::_scaled_mm'"):
            torch._scaled_mm(fp8.twin(a), fp8.twin(b), one(), one())
    finally:
        fp8.installation.set_mode(fp8="on")
    with fp8.installation.switches.using({"fp8": "off"}), pytest.raises(NotImplementedError, match="_scaled_mm"):
        torch._scaled_mm(fp8.twin(a), fp8.twin(b), one(), one())


def test_does_not_wait(fp8, no_faults, host_copies):
    for m in (4, 32):
        a, b = operands(m, 32, 48)
        x, y, s = fp8.twin(a), fp8.twin(b), one()
        before = host_copies()
        torch._scaled_mm(x, y, s, s, out_dtype=torch.bfloat16)
        assert host_copies() == before
