"""ATen on mps tensors: the CPU's results over the device's own memory."""

import copy
import io
import pickle

import pytest
import softmetal
import torch
import torch.nn.functional as F
from softmetal.tests.device_pairs import both, same


@pytest.fixture(autouse=True)
def device():
    softmetal.activate()
    return torch.device("mps")


# ---- memory: views, in-place, out, resize -------------------------------------------------------------------------


def test_views_are_views():
    x, m = both(4, 6)
    for view in (
        lambda t: t[1:3, ::2],
        lambda t: t.t(),
        lambda t: t.view(2, 12),
        lambda t: t.unsqueeze(0).expand(3, 4, 6),
        lambda t: t.as_strided((3, 2), (1, 6), 2),
        lambda t: t.unfold(1, 2, 2),
        lambda t: t.diagonal(),
        lambda t: t.permute(1, 0),
        lambda t: t.reshape(24),
        lambda t: t.select(0, 2),
        lambda t: t.detach(),
        lambda t: t.view(torch.int32),
        lambda t: t.tensor_split(3, 1)[1],
        lambda t: t.chunk(2)[1],
        lambda t: t.narrow(1, 2, 3),
        lambda t: t.movedim(0, 1),
        lambda t: t.swapaxes(0, 1),
        lambda t: t.squeeze(),
        lambda t: t.split([1, 3])[1],
        lambda t: t.unbind()[3],
        lambda t: t.ravel(),
    ):
        expected, actual = view(x), view(m)
        same(actual, expected)
        assert actual.storage_offset() == expected.storage_offset()
        assert actual.untyped_storage().data_ptr() == m.untyped_storage().data_ptr()
        assert (actual._base is None) == (expected._base is None)


def test_writes_through_views_reach_the_base():
    x, m = both(4, 6)
    for t in (x, m):
        t[1:3].mul_(2)
        t[:, 0] = 7
        t.t()[5].fill_(-1)
        t.view(-1)[3:5].add_(100)
        t[t > 50] = 0
        t[torch.tensor([0, 3])] += 1
        t.index_fill_(1, torch.tensor([2], device=t.device), 9)
        t.diagonal().zero_()
    same(m, x)


def test_in_place_ops_keep_the_tensor():
    x, m = both(3, 5)
    pointer = m.data_ptr()
    result = m.add_(1).clamp_(min=0).sqrt_().copy_(m * 2)
    assert result is m and m.data_ptr() == pointer
    same(m, x.add_(1).clamp_(min=0).sqrt_().copy_(x * 2))


def test_out_arguments_are_written_and_resized():
    x, m = both(3, 5)
    out = torch.empty(3, 5, device="mps")
    pointer = out.data_ptr()
    assert torch.add(m, 1, out=out) is out and out.data_ptr() == pointer
    same(out, x + 1)
    out = torch.empty(0, device="mps")
    torch.mul(m, 2, out=out)
    same(out, x * 2)
    values, indices = torch.empty(0, device="mps"), torch.empty(0, dtype=torch.long, device="mps")
    torch.max(m, dim=1, out=(values, indices))
    expected = torch.max(x, dim=1)
    same(values, expected.values)
    same(indices, expected.indices)
    window = torch.zeros(6, 5, device="mps")
    torch.neg(m, out=window[2:5])
    same(window[2:5], -x)
    assert not window[:2].any() and not window[5:].any()


def test_resize_keeps_data_and_storage():
    x, m = both(2, 3)
    view = m[1:]
    for t in (x, m):
        t.resize_(4, 4)
    assert m.flatten()[:6].tolist() == x.flatten()[:6].tolist()
    assert view.untyped_storage().data_ptr() == m.untyped_storage().data_ptr()
    m.resize_(2)
    assert m.tolist() == x.flatten()[:2].tolist()
    assert m.untyped_storage().nbytes() == 64
    y = torch.empty(0, device="mps").resize_(2, 3, 4, 5, memory_format=torch.channels_last)
    assert y.is_contiguous(memory_format=torch.channels_last)


def test_set_shares_storage():
    _, m = both(4, 4)
    other = torch.empty(0, device="mps").set_(m)
    assert other.data_ptr() == m.data_ptr() and other.shape == (4, 4)
    window = torch.empty(0, device="mps").set_(m.untyped_storage(), 4, (2, 2), (4, 1))
    assert window.tolist() == m[1:3, :2].tolist()
    whole = torch.empty(0, device="mps").set_(m.untyped_storage())
    assert whole.shape == (16,)
    assert window.set_().shape == (0,)
    with pytest.raises(RuntimeError, match="devices must match"):
        torch.empty(0, device="mps").set_(torch.ones(3).untyped_storage())


# ---- factories ------------------------------------------------------------


def test_factories():
    for make in (
        lambda d: torch.zeros(2, 3, device=d),
        lambda d: torch.ones(3, dtype=torch.int16, device=d),
        lambda d: torch.full((2,), 1.5, device=d),
        lambda d: torch.arange(2, 20, 3, device=d),
        lambda d: torch.linspace(0, 1, 7, device=d),
        lambda d: torch.eye(3, 4, device=d),
        lambda d: torch.tril_indices(3, 4, device=d),
        lambda d: torch.tensor([[1, 2], [3, 4]], device=d),
        lambda d: torch.scalar_tensor(3.0, device=d),
        lambda d: torch.logspace(0, 2, 5, device=d),
        lambda d: torch.zeros(2, 3, device=d).new_full((2,), 4),
        lambda d: torch.ones_like(torch.zeros(2, 3, device=d)),
        lambda d: torch.empty(2, 3, 4, 5, device=d, memory_format=torch.channels_last).fill_(2),
        lambda d: torch.empty_strided((2, 3), (1, 2), device=d).fill_(2),
        lambda d: torch.hann_window(8, device=d),
        lambda d: torch.as_tensor([True, False], device=d),
    ):
        same(make("mps"), make("cpu"))
    with torch.device("mps"):
        assert torch.zeros(2).device.type == "mps"


@pytest.mark.parametrize(
    "dtype",
    [
        torch.float16,
        torch.bfloat16,
        torch.int8,
        torch.uint8,
        torch.int16,
        torch.int64,
        torch.bool,
        torch.complex64,
        torch.float8_e4m3fn,
        torch.float8_e5m2,
    ],
)
def test_types_travel_both_ways(dtype):
    x = torch.arange(-4, 8).to(dtype)
    m = x.to("mps")
    assert m.dtype == dtype and m.itemsize == x.itemsize
    assert torch.equal(m.cpu().view(torch.uint8), x.view(torch.uint8))
    assert torch.equal(m.view(torch.uint8).cpu(), x.view(torch.uint8))


def test_metal_has_no_float64():
    for make in (
        lambda: torch.zeros(2, dtype=torch.float64, device="mps"),
        lambda: torch.zeros(2).double().to("mps"),
        lambda: torch.ones(2, device="mps").double(),
    ):
        with pytest.raises(
            TypeError, match="Cannot convert a MPS Tensor to float64 dtype as the MPS framework doesn't"
        ):
            make()
    with pytest.raises(TypeError, match="Trying to convert ComplexDouble to the MPS backend"):
        torch.zeros(2, dtype=torch.complex128, device="mps")
    assert (torch.ones(2, device="mps") * torch.tensor(2.0, dtype=torch.float64)).dtype == torch.float32


# ---- moving ------------------------------------------------------------


def test_to_moves_casts_and_keeps():
    x, m = both(2, 3, 4, 5)
    assert m.to("mps") is m
    assert m.to("mps", copy=True).data_ptr() != m.data_ptr()
    same(m.to(torch.float16), x.to(torch.float16))
    same(x.to("mps", torch.float16), x.to(torch.float16))
    assert torch.equal(m.to("cpu", torch.int32), x.to(torch.int32))
    last = x.contiguous(memory_format=torch.channels_last)
    assert last.to("mps").stride() == last.stride()
    assert torch.equal(m.transpose(0, 3).cpu(), x.transpose(0, 3))
    y = torch.zeros(2, 3, 4, 5)
    y.copy_(m)
    assert torch.equal(y, x)
    same(m.contiguous(memory_format=torch.channels_last), last)
    same(torch.zeros(5, 4, 3, 2).to("mps").copy_(x.permute(3, 2, 1, 0)), x.permute(3, 2, 1, 0).contiguous())
    assert m.numpy(force=True).tolist() == x.tolist()
    with pytest.raises(TypeError, match="can't convert mps:0 device type tensor to numpy"):
        m.numpy()


def test_save_load_pickle_and_deepcopy():
    x, m = both(3, 4)
    file = io.BytesIO()
    torch.save({"m": m, "part": m[1:, 2:], "half": m.half()}, file)
    file.seek(0)
    loaded = torch.load(file)
    same(loaded["m"], x)
    assert loaded["part"].untyped_storage().data_ptr() == loaded["m"].untyped_storage().data_ptr()
    file.seek(0)
    assert torch.load(file, map_location="cpu")["half"].device.type == "cpu"
    file = io.BytesIO()
    torch.save(x, file)
    file.seek(0)
    same(torch.load(file, map_location="mps"), x)
    same(pickle.loads(pickle.dumps(m)), x)
    duplicate = copy.deepcopy(m)
    same(duplicate, x)
    assert duplicate.data_ptr() != m.data_ptr()


def test_printing():
    _, m = both(2, 2)
    text = repr(m)
    assert text.endswith("device='mps:0')") and text.startswith("tensor([[")
    assert "dtype=torch.float8_e4m3fn" in repr(torch.ones(3).to("mps").to(torch.float8_e4m3fn))
    assert "1.+2.j" in repr(torch.tensor([1 + 2j], device="mps"))
    assert f"{torch.tensor(2.5, device='mps'):.1f}" == "2.5"
    assert repr(torch.tensor([], device="mps")) == "tensor([], device='mps:0')"


def test_pinned_memory_and_host_aliases():
    x = torch.arange(5.0).pin_memory()
    assert x.device.type == "cpu" and x.is_pinned() and x.tolist() == [0, 1, 2, 3, 4]
    assert not torch.ones(2).is_pinned()
    same(x.to("mps", non_blocking=True), torch.arange(5.0))
    if hasattr(torch.mps, "_host_alias_storage"):
        m = torch.zeros(4, device="mps")
        alias = torch.mps._host_alias_storage(m.untyped_storage())
        assert alias.device.type == "cpu" and alias.data_ptr() == m.data_ptr()
        torch.empty(0).set_(alias).fill_(3)
        assert m.tolist() == [3] * 4
        del m
        assert torch.empty(0).set_(alias).tolist() == [3] * 4


# ---- indexing, complex, mixing devices ------------------------------------------------------------


def test_indexing():
    x, m = both(5, 6)
    rows = torch.tensor([3, 0, 3])
    for index in (rows, (slice(None), rows), (rows, rows), x > 0, (None, 2), (..., -1), slice(None, None, 2)):
        there = (
            tuple(i.to("mps") if isinstance(i, torch.Tensor) else i for i in index)
            if isinstance(index, tuple)
            else (index.to("mps") if isinstance(index, torch.Tensor) else index)
        )
        same(m[there], x[index])
        same(m[index], x[index])  # CPU indices work on a Mac too
    same(m.index_select(0, rows.to("mps")), x.index_select(0, rows))
    same(m.gather(0, rows.view(1, 3).to("mps")), x.gather(0, rows.view(1, 3)))
    same(m.scatter_add(0, rows.view(1, 3).to("mps"), m[:1, :3]), x.scatter_add(0, rows.view(1, 3), x[:1, :3]))
    same(m.masked_select(m > 0), x.masked_select(x > 0))
    same(m.nonzero(), x.nonzero())
    same(torch.where(m > 0, m, 0.0), torch.where(x > 0, x, 0.0))
    with pytest.raises(IndexError):
        m[5]


def test_complex():
    x = torch.randn(3, 4, dtype=torch.complex64, generator=torch.Generator().manual_seed(0))
    m = x.to("mps")
    same(m.conj() * m, x.conj() * x)
    same(m.real, x.real)
    assert m.conj().is_conj() and torch.equal(m.conj().cpu(), x.conj())
    same(m.mH.contiguous(), x.mH.contiguous())
    same(torch.view_as_real(m), torch.view_as_real(x))
    same(torch.fft.fft(m), torch.fft.fft(x))
    m.imag.zero_()
    assert not m.imag.any()
    same(torch.abs(m), torch.abs(x.real.to(torch.complex64)))


def test_mixed_devices_raise_as_on_a_mac():
    x, m = both(2, 3)
    for call in (
        lambda: m + x,
        lambda: x + m,
        lambda: m @ x.t(),
        lambda: torch.cat([m, x]),
        lambda: m.add_(x),
        lambda: F.linear(m, x),
        lambda: torch.where(m > 0, m, x),
    ):
        with pytest.raises(RuntimeError, match="[Ee]xpected all tensors to be on the same device"):
            call()
    index = torch.tensor([1])
    with pytest.raises(RuntimeError, match="[Ee]xpected all tensors to be on the same device"):
        m[index] = torch.ones(1, 3)
    for call in (lambda: x[index.to("mps")], lambda: x.index_put_((index,), torch.ones(1, 3, device="mps"))):
        with pytest.raises((RuntimeError, IndexError), match="same device"):
            call()
    same(m[index], x[index])  # indices may be on the CPU
    same(m + torch.tensor(2.0), x + 2.0)
    same(torch.tensor(2.0) * m, x * 2.0)


def test_cpu_and_meta_are_untouched():
    assert torch.ones(2).device.type == "cpu" and (torch.ones(2) + 1).device.type == "cpu"
    y = torch.ones(2, device="meta") @ torch.ones(2, 3, device="meta")
    assert y.device.type == "meta" and y.shape == (3,)
    softmetal.counters.reset()
    before = softmetal.counters.memory()
    x = torch.randn(64, 64, requires_grad=True)
    F.pad(F.linear(x, x), (1, 1)).sum().backward()
    assert not softmetal.counters.all_calls() and softmetal.counters.memory() == before
    with_kernel = torch._C._dispatch_has_kernel_for_dispatch_key
    assert not any(
        with_kernel("aten::" + op, key)
        for op in ("copy_", "linear", "constant_pad_nd", "view", "set_")
        for key in ("PrivateUse1", "XPU")
    )
    with pytest.raises((AssertionError, RuntimeError), match="(?i)cuda|nvidia"):
        torch.ones(2, device="cuda")


def test_what_mps_lacks_the_dispatcher_refuses():
    a = torch.ones(16, 16, device="mps").to(torch.float8_e4m3fn)
    one = torch.ones((), device="mps")
    with pytest.raises(
        NotImplementedError, match="Could not run 'aten::_scaled_mm' with arguments from the 'MPS' backend"
    ):
        torch._scaled_mm(a, a.t(), scale_a=one, scale_b=one)
