"""torch._scaled_mm, which MPS lacks: blocks, FP8 results, nothing. Values and errors: tests/conformance."""

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


def one():
    return torch.ones((), device="mps")


def test_large_weight_in_blocks(fp8, monkeypatch):
    monkeypatch.setattr(fp8.modules.linear, "MAX_SCRATCH", 64 * 4 * 10)
    a, b = operands(20, 64, 48)
    scale_a, scale_b = scales(20, 48, "row", "row")
    bias = torch.randn(48, generator=torch.Generator().manual_seed(2))
    actual = fp8.family.scaled_mm(
        fp8.twin(a), fp8.twin(b), scale_a.to("mps"), scale_b.to("mps"), bias.to("mps"), torch.float32
    )
    assert_close(actual, exact(a, b, scale_a, scale_b, bias), a, b)


@pytest.mark.parametrize("per", ["tensor", "row"])
def test_rows_in_blocks_too(fp8, monkeypatch, per):
    """Of both operands, and of a product of few columns of K."""
    from softmetal import counters

    scratch = 64 * 4 * 8
    monkeypatch.setattr(fp8.modules.linear, "MAX_SCRATCH", scratch)
    for m, k, n in ((50, 64, 48), (50, 16, 96)):
        a, b = operands(m, k, n)
        scale_a, scale_b = scales(m, n, per, "row")
        twins = [fp8.twin(a), fp8.twin(b), scale_a.to("mps"), scale_b.to("mps")]
        fp8.family.scaled_mm(*twins, None, torch.float32)  # the blocks that the allocator keeps
        torch.mps.empty_cache()
        before = torch.mps.current_allocated_memory()
        counters.reset_memory_peaks()
        actual = fp8.family.scaled_mm(*twins, None, torch.float32)
        # The output, two blocks, a product; allocations are of whole pages.
        assert counters.memory_peaks()["current"] - before <= actual.nbytes + 3 * scratch + 8 * 2**14
        assert_close(actual, exact(a, b, scale_a, scale_b), a, b)


def test_out_on_another_device_is_refused(fp8):
    a, b = operands(16, 32, 48)
    out = torch.full((16, 48), 3.0)
    with pytest.raises(RuntimeError, match="out tensor to be on mps"):
        torch._scaled_mm(fp8.twin(a), fp8.twin(b), one(), one(), out_dtype=torch.float32, out=out)
    assert (out == 3).all()


def test_fp8_results(fp8):
    a, b = operands(5, 32, 16)
    for out in (None, E4M3, E5M2):
        actual = torch._scaled_mm(fp8.twin(a), fp8.twin(b), one(), one(), out_dtype=out)
        expected = exact(a, b, torch.ones(()), torch.ones(())).float().to(out or E4M3)
        assert actual.dtype == (out or E4M3)
        assert torch.equal(fp8.bits(actual), fp8.bits(expected))
    into = torch.empty(0, device="mps")
    torch._scaled_mm(fp8.twin(a), fp8.twin(b), one(), one(), out_dtype=torch.float32, out=into)
    assert_close(into, exact(a, b, torch.ones(()), torch.ones(())), a, b)


@pytest.mark.parametrize("scale", [4.0, 0.3])
@pytest.mark.parametrize("out", [E4M3, E5M2, torch.bfloat16], ids=str)
def test_a_scale_of_the_result(fp8, out, scale):
    """An FP8 result is divided by it, another does not look at it: so the CPU has it."""
    a, b = operands(16, 32, 48)
    factor = scale if out is not torch.bfloat16 else 1.0
    actual = torch._scaled_mm(fp8.twin(a), fp8.twin(b), one(), one(), None, torch.tensor(scale, device="mps"), out)
    expected = (exact(a, b, torch.ones(()), torch.ones(())).float() / torch.tensor(factor)).to(out)
    assert torch.equal(fp8.bits(actual), fp8.bits(expected))


@pytest.mark.skipif(not hasattr(F, "scaled_mm"), reason="torch before 2.10 has no F.scaled_mm")
def test_other_recipes_are_refused_in_words(fp8):
    """Where this torch has no such op on MPS, which alone would be said otherwise."""
    a, b = operands(16, 32, 48)
    x, y, block = fp8.twin(a), fp8.twin(b), F.ScalingType.BlockWise1x32
    for scales in (([one()], [block.value]), ([], []), ([one(), one()], [0, 0])):
        with pytest.raises(ValueError, match="Invalid scaling configuration"):
            torch._scaled_mm_v2(x, y, *scales, [], [one()], [0], [], None, torch.bfloat16)
    with pytest.raises(ValueError, match="swizzle"):
        torch._scaled_mm_v2(x, y, [one()], [0], [1], [one()], [0], [1], None, torch.bfloat16)
    with pytest.raises(ValueError, match="mat_a: 0 and mat_b: 1"):
        torch._scaled_mm_v2(x, y, [one()], [0], [], [one()], [0], [], None, torch.bfloat16, [0, 1])


def test_a_scale_of_the_result_is_one_float(fp8):
    a, b = operands(16, 32, 48)
    with pytest.raises(RuntimeError, match="scale_result must be a float scalar"):
        torch._scaled_mm(fp8.twin(a), fp8.twin(b), one(), one(), scale_result=torch.ones(2, device="mps"))


def test_empty(fp8):
    zero = torch.zeros(0, 32, dtype=torch.uint8).view(E4M3)
    _, b = operands(1, 32, 16)
    assert torch._scaled_mm(fp8.twin(zero), fp8.twin(b), one(), one(), out_dtype=torch.float32).shape == (0, 16)
    nothing = torch.zeros(4, 0, dtype=torch.uint8).view(E4M3)
    actual = torch._scaled_mm(
        fp8.twin(nothing), fp8.twin(nothing).new_empty(16, 0).t(), one(), one(), out_dtype=torch.float32
    )
    assert actual.shape == (4, 16) and not actual.cpu().any()


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


def test_does_not_wait(fp8, host_copies):
    for m in (4, 32):
        a, b = operands(m, 32, 48)
        x, y, s = fp8.twin(a), fp8.twin(b), one()
        before = host_copies()
        torch._scaled_mm(x, y, s, s, out_dtype=torch.bfloat16)
        assert host_copies() == before
