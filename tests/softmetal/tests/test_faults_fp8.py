"""FP8 on stock: bytes travel, nothing else works, and the words differ by version; the ops that are missing."""

import pytest
import softmetal
import torch
import torch.nn.functional as F

E4M3, E5M2 = torch.float8_e4m3fn, torch.float8_e5m2
WORDS = {
    "2.9": (TypeError, "Trying to convert {} to the MPS backend but it does not have support for that dtype."),
    "2.12": (RuntimeError, "Undefined type {}"),
    "2.13": (RuntimeError, "Undefined type {}"),
    "2.14": (RuntimeError, "Undefined type {}"),
}
NAMES = {E4M3: "Float8_e4m3fn", E5M2: "Float8_e5m2"}


def all_bytes(dtype):
    return torch.arange(256, dtype=torch.int16).to(torch.uint8).view(dtype)


CASTS = [
    lambda m: m.to(torch.float32),
    lambda m: m.to(torch.float16),
    lambda m: m.to(torch.bfloat16),
    lambda m: torch.zeros(256, device="mps").copy_(m),
    lambda m: torch.zeros(256, device="mps").to(m.dtype),
    lambda m: m.to("cpu", torch.float32),
    lambda m: torch.zeros(256).to(m.dtype).to("mps").float(),
]
STRIDED = [
    lambda m: m.view(16, 16).t().contiguous(),
    lambda m: m.view(16, 16).t().reshape(-1),
    lambda m: m.view(16, 16).t().clone(),
    lambda m: m.view(16, 16)[:, 2:].contiguous(),
    lambda m: m[16:].clone(),
    lambda m: m[::2].clone(),
    lambda m: m.view(16, 16).t().cpu(),
    lambda m: m[0].item(),
    lambda m: m.fill_(1),
    lambda m: torch.cat([m, m]),
    lambda m: F.pad(m, (1, 1)),
    lambda m: m.index_select(0, torch.tensor([1], device="mps")),
    lambda m: m.flip(0),
    lambda m: torch.add(m, m),
    repr,
    lambda m: m.view(16, 16)[1:].__setitem__(0, m.view(16, 16)[0]),
]


@pytest.mark.parametrize("profile", WORDS)
@pytest.mark.parametrize("dtype", [E4M3, E5M2], ids=str)
@pytest.mark.parametrize("use", CASTS + STRIDED)
def test_casts_and_strided_copies_raise(profile, dtype, use):
    """Reports 5 and 6."""
    softmetal.activate(profile)
    m = all_bytes(dtype).to("mps")
    kind, words = WORDS[profile]
    with pytest.raises(kind) as caught:
        use(m)
    assert str(caught.value).splitlines()[0] == words.format(NAMES[dtype])
    assert type(caught.value) is kind


@pytest.mark.parametrize("profile", [*WORDS, "2.15", None])
@pytest.mark.parametrize("dtype", [E4M3, E5M2], ids=str)
def test_bytes_travel(profile, dtype):
    softmetal.activate(profile)
    x = all_bytes(dtype)
    m = x.to("mps")
    assert m.dtype == dtype and m.shape == (256,)
    assert torch.equal(m.view(torch.uint8).cpu(), x.view(torch.uint8))
    assert torch.equal(m.cpu().view(torch.uint8), x.view(torch.uint8))
    assert torch.empty(4, 4, dtype=dtype, device="mps").shape == (4, 4)
    assert m.view(16, 16).t().stride() == (1, 16)
    assert torch.equal(m.clone().view(torch.uint8), m.view(torch.uint8))


@pytest.mark.parametrize("use", CASTS + STRIDED[:-4])
def test_2_15_knows_e4m3fn_only(use):
    softmetal.activate("2.15")
    use(all_bytes(E4M3).to("mps"))
    with pytest.raises(RuntimeError, match="Undefined type Float8_e5m2"):
        use(all_bytes(E5M2).to("mps"))


@pytest.mark.parametrize("dtype", [E4M3, E5M2], ids=str)
def test_a_faultless_stock_casts_as_the_cpu(dtype):
    softmetal.activate()
    x = all_bytes(dtype)
    for to in (torch.float32, torch.float16, torch.bfloat16):
        assert torch.equal(x.to("mps").to(to).cpu().nan_to_num(7.5), x.to(to).nan_to_num(7.5))


@pytest.mark.parametrize("profile", [None, "2.9", "2.12", "2.13", "2.14", "2.15"])
def test_scaled_mm_is_missing_in_every_version(profile):
    softmetal.activate(profile)
    m = torch.zeros(16, 16, dtype=torch.uint8, device="mps").view(E4M3)
    scale = torch.ones((), device="mps")
    with pytest.raises(
        NotImplementedError, match="Could not run 'aten::_scaled_mm' with arguments from the 'MPS' backend"
    ):
        torch._scaled_mm(m, m.t(), scale_a=scale, scale_b=scale)


@pytest.mark.skipif(not hasattr(torch.ops.aten, "_scaled_mm_v2"), reason="torch before 2.10 has no _scaled_mm_v2")
@pytest.mark.parametrize(
    ("profile", "missing"), [("2.12", True), ("2.13", True), ("2.14", True), ("2.15", False), (None, False)]
)
def test_scaled_mm_v2_came_with_2_15(profile, missing):
    softmetal.activate(profile)
    has = torch._C._dispatch_has_kernel_for_dispatch_key("aten::_scaled_mm_v2", "MPS")
    assert has != missing
    a = torch.randn(16, 32, generator=torch.Generator().manual_seed(0)).to(E4M3)
    b = torch.randn(16, 32, generator=torch.Generator().manual_seed(1)).to(E4M3)
    one = torch.ones(())

    def scaled_mm(device):
        return F.scaled_mm(
            a.to(device),
            b.to(device).t(),
            one.to(device),
            F.ScalingType.TensorWise,
            one.to(device),
            F.ScalingType.TensorWise,
            output_dtype=torch.float32,
        )

    if missing:
        # The dispatcher's own words; torch 2.15's is a composite of the out variant, which is what it then misses.
        with pytest.raises(
            NotImplementedError, match=r"Could not run 'aten::_scaled_mm_v2(\.out)?' with arguments from the 'MPS'"
        ):
            scaled_mm("mps")
    else:
        torch.testing.assert_close(scaled_mm("mps").cpu(), scaled_mm("cpu"))


@pytest.mark.parametrize(
    ("profile", "syncs"),
    [("2.12", True), ("2.13", True), ("2.14", True), ("2.15", False), (None, False), ({"grouped-mm-syncs"}, True)],
    ids=str,
)
def test_grouped_mm_waits_for_offs(profile, syncs):
    softmetal.activate(profile)
    x = torch.randn(8, 16, generator=torch.Generator().manual_seed(0)).bfloat16()
    w = torch.randn(2, 16, 8, generator=torch.Generator().manual_seed(1)).bfloat16()
    offs = torch.tensor([3, 8], dtype=torch.int32)
    expected = torch._grouped_mm(x, w, offs=offs)
    arguments = [t.to("mps") for t in (x, w, offs)]
    softmetal.counters.reset()
    result = torch._grouped_mm(arguments[0], arguments[1], offs=arguments[2])
    assert softmetal.counters.host_copies() == (1 if syncs else 0)
    torch.testing.assert_close(result.cpu(), expected, rtol=0.02, atol=0.02)
