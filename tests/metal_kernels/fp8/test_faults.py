"""Reports 5 and 6 by torch version: wrong on stock first, then right; and what auto leaves to a torch that can."""

import pytest
import torch
import torch.nn.functional as F
from conformance import bad_input

E4M3, E5M2 = torch.float8_e4m3fn, torch.float8_e5m2
VERSIONS = ("2.9", "2.12", "2.13", "2.14", "2.15")
ERRORS = {
    "2.9": (TypeError, "Trying to convert Float8_{} to the MPS backend"),
    "": (RuntimeError, "Undefined type Float8_{}"),
}


@pytest.fixture(params=VERSIONS)
def version(request, fp8):
    """That torch's stock, the kernel in mode auto as a user has it."""
    import softmetal

    with softmetal.profile(faults=request.param):
        fp8.installation.uninstall()
        fp8.installation.set_mode(fp8="auto")
        fp8.installation._environment = None
        fp8.installation.install()
        assert fp8.installation.switches["fp8"].state[0] == "patched"
        yield request.param
    fp8.installation.uninstall()
    fp8.installation.install()
    fp8.installation.set_mode(fp8="on")


def stock_lacks(version, dtype):
    return version != "2.15" or dtype is not E4M3


def assert_stock_raises(fp8, version, dtype, call):
    kind, words = ERRORS.get(version, ERRORS[""])
    with fp8.installation.switches.using({"fp8": "off"}), pytest.raises(kind, match=words.format(str(dtype)[13:])):
        call()


REPORT_6 = {
    "transpose": lambda x: x.t().contiguous(),
    "reshape": lambda x: x.t().reshape(-1),
    "clone": lambda x: x.t().clone(),
    "slice with an offset": lambda x: x[3:, 5:].contiguous(),
}


@pytest.mark.parametrize("dtype", (E4M3, E5M2), ids=str)
def test_report_5_all_bytes_cast(fp8, version, dtype):
    x = fp8.every_byte(dtype)
    m = fp8.twin(x)
    for wide in (torch.float32, torch.float16, torch.bfloat16):
        if stock_lacks(version, dtype):
            assert_stock_raises(fp8, version, dtype, lambda wide=wide: m.to(wide))
        before = fp8.taken
        fp8.assert_same(m.to(wide), x.to(wide))
        assert (fp8.taken > before) is stock_lacks(version, dtype), "auto takes what stock lacks, and that alone"
        fp8.assert_same(x.to(wide).to("mps").to(dtype), x.to(wide).to(dtype))


WRONG = {
    "cat of single values": lambda x, device: torch.cat([x[0, 0], x[0, 0]]),
    "index into nothing": lambda x, device: x[:0][torch.tensor([0], device=device)],
    "index_select of nothing": lambda x, device: x[:0].index_select(0, torch.tensor([0], device=device)),
    "embedding of nothing": lambda x, device: F.embedding(torch.tensor([0], device=device), x[:0]),
    "flip of a missing dimension": lambda x, device: x.flip(2),
    "repeat of too few": lambda x, device: x.repeat(2),
    "shapes that differ": lambda x, device: torch.cat([x, x[:, :3]]),
    "fill with several": lambda x, device: x.clone().fill_(torch.ones(2, device=device)),
}


@pytest.mark.parametrize("what", WRONG)
def test_what_is_wrong_with_a_move_is_said_in_the_CPUs_words(fp8, version, what):
    """And not that stock lacks the dtype."""
    x = fp8.every_byte(E5M2)
    with pytest.raises((RuntimeError, IndexError)) as expected:
        WRONG[what](x, "cpu")
    with pytest.raises(expected.type) as actual:
        WRONG[what](fp8.twin(x), "mps")
    assert type(actual.value) is expected.type
    assert str(actual.value).splitlines()[0] == str(expected.value).splitlines()[0]


HUNGRY = {
    "linear, few rows": lambda x, w: F.linear(x[:1], w),
    "linear, many rows": lambda x, w: F.linear(x, w),
    "cast": lambda x, w: w.to(torch.float32),
    "cat": lambda x, w: torch.cat([w, w]),
    "flip": lambda x, w: w.flip(0),
    "scaled_mm": lambda x, w: torch._scaled_mm(
        w, w.t(), torch.ones((), device="mps"), torch.ones((), device="mps"), out_dtype=torch.float32
    ),
}


@pytest.mark.parametrize("what", HUNGRY)
def test_out_of_memory_is_said(fp8, version, what):
    """ComfyUI makes room when it reads so. Stock would say that it lacks the dtype, or the op."""
    x, w = torch.randn(32, 4096, device="mps"), fp8.twin(torch.zeros(4096, 4096, dtype=torch.uint8).view(E5M2))
    w = fp8.twin(torch.zeros(4096, 4096, dtype=torch.uint8).view(E4M3)) if what == "scaled_mm" else w
    HUNGRY[what](x[:, :64].contiguous(), w[:64, :64].contiguous())  # the self-check is over
    torch.mps.empty_cache()
    torch.mps.set_per_process_memory_fraction(1e-7)
    try:
        with pytest.raises(RuntimeError, match="MPS backend out of memory"):
            HUNGRY[what](x, w)
    finally:
        torch.mps.set_per_process_memory_fraction(0.0)
    assert fp8.installation.switches["fp8"].failure is None


@pytest.mark.parametrize("what", bad_input.ARITHMETIC)
def test_arithmetic_raises_and_computes_nothing(fp8, version, what):
    """The CPU raises too. The words are stock's, whose operations these are: none of them is patched for FP8."""
    x = fp8.every_byte(E5M2)
    with pytest.raises(RuntimeError):
        bad_input.ARITHMETIC[what](x)
    with pytest.raises((RuntimeError, TypeError)):  # torch 2.9's stock raises a TypeError at this dtype
        bad_input.ARITHMETIC[what](fp8.twin(x))


@pytest.mark.parametrize("dtype", (E4M3, E5M2), ids=str)
def test_report_6_strided_copies(fp8, version, dtype):
    x = torch.randint(0, 256, (128, 64), dtype=torch.uint8, generator=torch.Generator().manual_seed(0)).view(dtype)
    m = fp8.twin(x)
    for what, call in REPORT_6.items():
        if stock_lacks(version, dtype):
            assert_stock_raises(fp8, version, dtype, lambda call=call: call(m))
        fp8.assert_same(call(m), call(x), what)


def test_a_layer_of_each_kind(fp8, version):
    """What models do with FP8: cast in Python, F.linear on a raw weight with a bias, scaled_mm; in every version."""
    weight = torch.randn(32, 64, generator=torch.Generator().manual_seed(0)).to(E4M3)
    x, bias = torch.randn(3, 64, generator=torch.Generator().manual_seed(1)), torch.randn(32)
    w = fp8.twin(weight)
    expected = F.linear(x, weight.float(), bias)
    torch.testing.assert_close(F.linear(x.to("mps"), w.to(torch.float32), bias.to("mps")).cpu(), expected)
    torch.testing.assert_close(F.linear(x.to("mps"), w, bias.to("mps")).cpu(), expected)
    one = torch.ones((), device="mps")
    actual = torch._scaled_mm(x.to("mps").to(E4M3), w.t(), one, one, out_dtype=torch.float32)
    torch.testing.assert_close(actual.cpu(), x.to(E4M3).float() @ weight.float().t())


def test_on_patches_everywhere(fp8):
    import softmetal

    with softmetal.profile(faults="2.15"):
        x = fp8.every_byte(E4M3)
        before = fp8.taken
        fp8.assert_same(fp8.twin(x).float(), x.float())
        assert fp8.taken > before, "mode on takes what stock could do as well"
