"""copy_ and cast: all layouts, across devices, broadcast. Every value of the small types: tests/conformance."""

import pytest
import torch

WIDE = (torch.float32, torch.float16, torch.bfloat16)
E4M3, E5M2 = torch.float8_e4m3fn, torch.float8_e5m2

@pytest.mark.parametrize("wide", WIDE, ids=str)
def test_all_bytes_back(fp8, wide):
    """Report 5, and the formats that are only decoded: values, NaN payloads and all."""
    for dtype in fp8.dtypes:
        x = fp8.every_byte(dtype)
        fp8.assert_same(fp8.twin(x).to(wide), x.to(wide), dtype)
        fp8.assert_same(fp8.twin(x)[1:, 3:].to(wide), x[1:, 3:].to(wide), dtype)


LAYOUTS = {
    "contiguous": lambda x: x,
    "transposed": lambda x: x.transpose(0, 2),
    "offset": lambda x: x[1:],
    "columns": lambda x: x[..., 1:-1],
    "steps": lambda x: x[::2, :, ::3],
    "expanded": lambda x: x[:1].expand(4, -1, -1),
    "vector": lambda x: x.flatten()[3:],
    "0-dim": lambda x: x[0, 0, 0],
    "empty": lambda x: x[:0],
    "size-0 inside": lambda x: x[:, :, 2:2],
    "channels_last": lambda x: x[None].contiguous(memory_format=torch.channels_last),
}


@pytest.mark.parametrize("layout", LAYOUTS)
def test_layouts(fp8, layout):
    """Report 6. Strides too: `.to` keeps those of a dense tensor."""
    wide = torch.randn(4, 6, 16, generator=torch.Generator().manual_seed(0))
    for dtype in (E4M3, E5M2):
        x = LAYOUTS[layout](wide.to(dtype))
        w = LAYOUTS[layout](wide)
        m, mw = fp8.twin(x), fp8.twin(w)
        for target in (*WIDE, E5M2 if dtype is E4M3 else E4M3):
            fp8.assert_same(m.to(target), x.to(target), target)
        fp8.assert_same(mw.to(dtype), w.to(dtype))
        fp8.assert_same(mw.half().to(dtype), w.half().to(dtype))
        fp8.assert_same(m.clone(), x.clone())
        fp8.assert_same(m.contiguous(), x.contiguous())
        fp8.assert_same(m.reshape(-1), x.reshape(-1))
        target, on_device = torch.zeros(x.shape, dtype=dtype), torch.zeros(x.shape, dtype=dtype, device="mps")
        fp8.assert_same(on_device.copy_(mw), target.copy_(w))
        into, on_device = torch.zeros(*x.shape, 2)[..., 1], torch.zeros(*x.shape, 2, device="mps")[..., 1]
        fp8.assert_same(on_device.copy_(m), into.copy_(x))


@pytest.mark.parametrize("dtype", (E4M3, E5M2), ids=str)
def test_across_devices(fp8, dtype):
    x = fp8.every_byte(dtype)
    m = fp8.twin(x)
    for target in (torch.float32, torch.float16, torch.float64, torch.int32, E4M3, E5M2):
        fp8.assert_same(m.t().to("cpu", target), x.t().to(target), target)
    fp8.assert_same(x.t().to("mps"), x.t())
    fp8.assert_same(x.to("mps", torch.float32), x.float())
    for source in (torch.float32, torch.bfloat16, torch.float64, torch.int32, torch.bool):
        w = (torch.randn(33, generator=torch.Generator().manual_seed(0)) * 9).to(source)
        fp8.assert_same(w.to("mps", dtype), w.to(dtype), source)
    w = torch.randn(33, generator=torch.Generator().manual_seed(0))
    fp8.assert_same(w.to("mps").to("cpu", dtype), w.to(dtype))


@pytest.mark.parametrize("dtype", (E4M3, E5M2), ids=str)
def test_other_types(fp8, dtype):
    x = torch.tensor([0.0, -0.0, 1.0, -2.5, 96.0, 0.0625]).to(dtype)
    for target in (torch.int8, torch.int32, torch.int64, torch.bool, torch.complex64):
        fp8.assert_same(fp8.twin(x).to(target), x.to(target), target)
    for source in (torch.arange(-300, 300, 7), torch.tensor([True, False]), torch.tensor([2**40, -(2**20) - 1])):
        fp8.assert_same(source.to("mps").to(dtype), source.to(dtype), source.dtype)


def test_broadcast_and_errors(fp8):
    m = torch.zeros(4, 8, device="mps").to(E4M3)
    x = torch.zeros(4, 8).to(E4M3)
    row = torch.arange(8.0)
    fp8.assert_same(m.copy_(row.to("mps")), x.copy_(row))
    fp8.assert_same(m.copy_(fp8.twin(row.to(E4M3))), x.copy_(row.to(E4M3)))
    m[1], x[1] = 3.0, 3.0
    m[:, 2] = torch.ones(4, device="mps")
    x[:, 2] = torch.ones(4)
    fp8.assert_same(m, x)
    for wrong in (torch.zeros(3), torch.zeros(3).to(E4M3), torch.zeros(0)):
        with pytest.raises(RuntimeError) as expected:
            x.copy_(wrong)
        with pytest.raises(RuntimeError) as actual:
            m.copy_(fp8.twin(wrong))
        assert str(actual.value) == str(expected.value)
    fp8.assert_same(m, x, "nothing is written")


def test_more_threads_than_a_line(fp8, monkeypatch):
    """Where a uint could not number the threads, the grid has lines: here of 8 threads."""
    monkeypatch.setattr(fp8.modules.cast, "LINE", 8)
    x = torch.randn(16 * 37, generator=torch.Generator().manual_seed(0))
    fp8.assert_same(fp8.twin(x).to(E4M3), x.to(E4M3))
    fp8.assert_same(fp8.twin(x[1:]).to(E4M3), x[1:].to(E4M3))
    fp8.assert_same(fp8.twin(x.to(E4M3)).half(), x.to(E4M3).half())
    fp8.assert_same(fp8.twin(x.to(E4M3)).to(E5M2), x.to(E4M3).to(E5M2))


def test_casts_do_not_wait(fp8, host_copies):
    m = torch.randn(64, 64, device="mps")
    m.to(E4M3).t().bfloat16().to(E5M2).contiguous()
    assert host_copies() == 0


def test_other_copies_are_not_touched(fp8):
    before = fp8.taken
    target = torch.zeros(4, device="mps")
    target.copy_(torch.ones(4))
    target.copy_(torch.ones(4, device="mps").half())
    torch.isfinite(target)  # hands copy_ a number where the schema says Tensor
    assert fp8.taken == before
    assert target.cpu().tolist() == [1.0] * 4


def test_autograd_passes_through_a_cast(fp8):
    x = torch.randn(4, 4, requires_grad=True)
    m = x.detach().to("mps").requires_grad_()
    (x.to(E4M3).float() * 2).sum().backward()
    (m.to(E4M3).float() * 2).sum().backward()
    assert torch.equal(m.grad.cpu(), x.grad)


def test_cast_refuses_what_is_no_fp8_cast(fp8):
    with pytest.raises(ValueError, match="fp8.cast takes FP8"):
        fp8.family.cast(torch.zeros(3, device="mps"), torch.float16)
    with pytest.raises(ValueError, match="on mps"):
        fp8.family.cast(torch.zeros(3), E4M3)
