"""The ops that move FP8 elements, against the CPU; those that the CPU refuses, against the same op on bytes."""

import copy
import io

import pytest
import torch
import torch.nn.functional as F

E4M3, E5M2 = torch.float8_e4m3fn, torch.float8_e5m2

# x: FP8 [16, 16], i: int64 [3], m: a mask of x's shape; all on one device.
MOVES = {
    "cat": lambda x, i, m: torch.cat([x, x[:3], x]),
    "cat of columns": lambda x, i, m: torch.cat([x.t(), x], dim=1),
    "stack": lambda x, i, m: torch.stack([x, x.roll(1, 1)], dim=1),
    "hstack": lambda x, i, m: torch.hstack([x, x]),
    "index_select": lambda x, i, m: x.index_select(1, i),
    "embedding": lambda x, i, m: F.embedding(i.view(1, 3), x),
    "index": lambda x, i, m: x[i],
    "index of two": lambda x, i, m: x[i, i],
    "index by a mask": lambda x, i, m: x[m],
    "masked_select": lambda x, i, m: x.t().masked_select(m),
    "where": lambda x, i, m: torch.where(m, x, x.t()),
    "flip": lambda x, i, m: x.view(2, 8, 16).flip(0),
    "roll": lambda x, i, m: x.roll((1, -3), (0, 1)),
    "repeat": lambda x, i, m: x[:2, ::3].repeat(2, 1, 3),
    "tile": lambda x, i, m: x.tile(2),
    "repeat_interleave": lambda x, i, m: x.repeat_interleave(2, dim=0),
    "expand": lambda x, i, m: x[:1].expand(4, 16).contiguous(),
    "unfold": lambda x, i, m: x.unfold(0, 3, 2).contiguous(),
    "diag": lambda x, i, m: x.diag(),
    "split and cat": lambda x, i, m: torch.cat(x.split(5), dim=0),
    "slice_scatter": lambda x, i, m: torch.slice_scatter(x, x[:2], 0, 4, 6),
    "pad": lambda x, i, m: F.pad(x, (1, 2, 3, -1)),
    "pad with a value": lambda x, i, m: F.pad(x, (1, 1), value=-1.7),
    "channels_last": lambda x, i, m: x.view(1, 4, 8, 8).contiguous(memory_format=torch.channels_last),
    "permuted clone": lambda x, i, m: x.view(4, 4, 16).permute(2, 0, 1).clone(),
    "deepcopy": lambda x, i, m: copy.deepcopy(x),
    "full": lambda x, i, m: torch.full((3,), 1.7, dtype=x.dtype, device=x.device),
    "ones_like": lambda x, i, m: torch.ones_like(x),
    "zeros": lambda x, i, m: x.new_zeros(3),
    "tensor": lambda x, i, m: torch.tensor([1.0, 2.3, 1e9], dtype=x.dtype, device=x.device),
    "item": lambda x, i, m: [x[3, k].item() for k in range(16)],
    "item of a NaN": lambda x, i, m: x[7, 15].item(),
    "tolist": lambda x, i, m: x.tolist(),
    "resize_": lambda x, i, m: x.clone().resize_(3, 3),
    "save and load": lambda x, i, m: saved(x),
}

# x is a clone, to be written to.
WRITES = {
    "fill_": lambda x, i, m: x.fill_(-2.3),
    "fill_ with a number": lambda x, i, m: x.fill_(7),
    "fill_ with a tensor": lambda x, i, m: x.fill_(torch.tensor(1.7)),
    "fill_ with one on the device": lambda x, i, m: x.fill_(torch.tensor(1.7, device=x.device)),
    "fill_ a column": lambda x, i, m: x[:, 3].fill_(1.7),
    "zero_": lambda x, i, m: x[::2].zero_(),
    "index_put_": lambda x, i, m: x.index_put_((i,), x[4:7].clone()),
    "set by index": lambda x, i, m: x.__setitem__(i, x[4:7].clone()),
    "set a slice": lambda x, i, m: x.__setitem__((slice(0, 2),), x[2:4].clone()),
    "set a column": lambda x, i, m: x.__setitem__((slice(None), 3), x[3].clone()),
    "set a row to a number": lambda x, i, m: x.__setitem__(0, 1.3),
    "set from float": lambda x, i, m: x.__setitem__(1, torch.arange(16.0, device=x.device)),
}

# What the CPU kernel has no FP8 version of, though it only moves.
BYTES = {
    "flip of columns": lambda x, i, m: x.flip(0, 1),
    "gather": lambda x, i, m: x.gather(0, i.view(3, 1).expand(3, 16)),
    "take_along_dim": lambda x, i, m: torch.take_along_dim(x, i.view(3, 1).expand(3, 16), 0),
}


def saved(x):
    buffer = io.BytesIO()
    torch.save(x, buffer)
    buffer.seek(0)
    return torch.load(buffer, map_location=x.device)


def on_cpu(move, x, i, m):
    """What the CPU gives; where this torch's CPU kernel has no FP8 (index, in 2.9), what it gives for the bytes."""
    try:
        return move(x, i, m)
    except NotImplementedError:
        result = move(x.view(torch.uint8), i, m)
        return result if result is None else result.view(x.dtype)


def inputs(fp8, dtype, layout):
    x = fp8.every_byte(dtype)
    if layout == "transposed":
        x = x.t()
    elif layout == "offset":
        x = torch.cat([x.view(torch.uint8)] * 2)[1:17].view(dtype)
    i, m = torch.tensor([3, 0, 15]), torch.arange(256).view(16, 16) % 3 == 0
    return (x, i, m), (fp8.twin(x), i.to("mps"), m.to("mps"))


@pytest.mark.parametrize("layout", ("contiguous", "transposed", "offset"))
@pytest.mark.parametrize("move", MOVES)
def test_moves(fp8, move, layout):
    if layout == "transposed" and move in ("flip", "channels_last", "permuted clone"):
        layout = "offset"  # they view
    for dtype in (E4M3, E5M2):
        cpu, mps = inputs(fp8, dtype, layout)
        fp8.assert_same(MOVES[move](*mps), on_cpu(MOVES[move], *cpu), dtype)


@pytest.mark.parametrize("write", WRITES)
def test_writes(fp8, write):
    for dtype in (E4M3, E5M2):
        (x, *cpu), (y, *mps) = inputs(fp8, dtype, "contiguous")
        x, y = x.clone(), y.clone()
        version = y._version
        result = WRITES[write](y, *mps)
        on_cpu(WRITES[write], x, *cpu)
        fp8.assert_same(y, x, dtype)
        assert y._version > version
        assert result is None or result.data_ptr() >= y.data_ptr()


@pytest.mark.parametrize("move", BYTES)
def test_moves_that_the_cpu_lacks(fp8, move):
    for dtype in (E4M3, E5M2):
        (x, *cpu), mps = inputs(fp8, dtype, "contiguous")
        expected = BYTES[move](x.view(torch.uint8), *cpu).view(dtype)
        fp8.assert_same(BYTES[move](*mps), expected)


def test_formats_that_are_only_decoded_move_too(fp8):
    for dtype in set(fp8.dtypes) - {E4M3, E5M2}:
        x = fp8.every_byte(dtype)
        m = fp8.twin(x)
        fp8.assert_same(torch.cat([m.t(), m]), torch.cat([x.t(), x]))
        fp8.assert_same(m[3:, 1:].clone(), x[3:, 1:].clone())
        fp8.assert_same(m.flip(0), x.flip(0))
        fp8.assert_same(m[2, 2].item(), x[2, 2].item())


@pytest.mark.parametrize("dtype", (E4M3, E5M2), ids=str)
def test_printing(fp8, dtype):
    x = fp8.random((3, 5), dtype)
    assert repr(fp8.twin(x)).replace("device='mps:0',", "").split() == repr(x).split()


def test_moves_do_not_wait(fp8, host_copies):
    x, i = torch.zeros(16, 16, dtype=torch.uint8, device="mps").view(E4M3), torch.tensor([1, 2], device="mps")
    host_copies_of = ("cat", "stack", "index_select", "embedding", "where", "flip", "roll", "repeat", "pad")
    m = torch.ones(16, 16, dtype=torch.bool, device="mps")
    i3 = torch.tensor([1, 2, 3], device="mps")
    before = host_copies()
    for move in host_copies_of:
        MOVES[move](x, i3, m)
    x.fill_(torch.ones((), device="mps"))
    x[i] = x[:2].clone()
    assert host_copies() == before


def test_mixed_dtypes_and_accumulation_are_left_to_stock(fp8):
    x = fp8.twin(fp8.every_byte(E4M3))
    before = fp8.taken
    for call in (
        lambda: torch.cat([x, x.view(torch.uint8)]),
        lambda: torch.stack([x, x.view(torch.uint8).view(E5M2)]),
        lambda: x.index_put_((torch.tensor([0], device="mps"),), x[:1], accumulate=True),
        lambda: torch.where(x.view(torch.uint8) > 3, x, x.view(torch.uint8)),
    ):
        with pytest.raises(RuntimeError, match="Undefined type Float8_e4m3fn|Promotion for Float8"):
            call()
    assert fp8.taken == before


@pytest.mark.parametrize("value", (float("inf"), float("nan"), 1e9, -1e9, 448.5, 1j, True, 2**40))
def test_values_that_do_not_fit(fp8, value):
    """fill_ and pad refuse a value in the CPU's words, or take it as the CPU does."""
    for dtype in (E4M3, E5M2):
        x = fp8.every_byte(dtype)
        for call in (lambda y: y.clone().fill_(value), lambda y: torch.constant_pad_nd(y, (1, 1), value)):
            m = fp8.twin(x)
            try:
                expected = call(x)
            except (RuntimeError, TypeError) as error:
                with pytest.raises(type(error)) as actual:
                    call(m)
                assert str(actual.value) == str(error)
            else:
                fp8.assert_same(call(m), expected)


@pytest.mark.parametrize("dtype", [getattr(torch, name) for name in (
    "float8_e4m3fn", "float8_e5m2", "float8_e4m3fnuz", "float8_e5m2fnuz", "float8_e8m0fnu") if hasattr(torch, name)])
def test_a_pad_that_adds_nothing_looks_at_no_value(fp8, dtype):
    """As the CPU has it: a value that the dtype cannot hold is no error where no element gets it."""
    x = torch.arange(12, dtype=torch.uint8).view(dtype).view(3, 4)
    for value in (1e6, -1.0, -0.0, 1e-45, float("inf"), 1j):
        for pad in ((0, 0), (-1, 0), (0, -1, -1, 0), (-4, 0)):
            fp8.assert_same(torch.ops.aten.constant_pad_nd(fp8.twin(x), pad, value),
                            torch.ops.aten.constant_pad_nd(x, pad, value))


@pytest.mark.parametrize("dtype", [E4M3, E5M2], ids=str)
def test_equal(fp8, dtype):
    """As the CPU has it: by value, so that -0 is 0 and NaN is nothing; in any layout."""
    x, numbers = fp8.random((5, 48), dtype), fp8.every_byte(dtype)[:4]
    other = x.view(torch.uint8).clone()
    other[4, 47] ^= 1
    zeros = torch.tensor([0x00, 0x80], dtype=torch.uint8).view(dtype)
    nan = torch.tensor([0x38, 0x7F], dtype=torch.uint8).view(dtype)
    for one, two, expected in (
        (x, x.clone(), True), (x, other.view(dtype), False), (x, x[:4], False), (x.t(), x.t().contiguous(), True),
        (x[:, ::2], x[:, ::2].clone(), True), (x[:0], x[:0].clone(), True), (x[0, 0], x[0, 0].clone(), True),
        (zeros[:1], zeros[1:], True), (nan, nan.clone(), False), (numbers, numbers.clone(), True),
    ):  # fmt: skip
        assert torch.equal(one, two) is expected, "the CPU's"
        before = fp8.taken
        assert torch.equal(fp8.twin(one), fp8.twin(two)) is expected
        assert fp8.taken > before
    mine = fp8.twin(x)
    assert torch.equal(mine, mine) and torch.equal(mine.float(), mine.float())


def test_equal_in_blocks(fp8, monkeypatch):
    monkeypatch.setattr(fp8.modules.moves, "COMPARED", 64)
    x = fp8.random((7, 48), E4M3)
    for at in (0, 63, 64, 7 * 48 - 1):
        other = x.view(torch.uint8).flatten().clone()
        other[at] ^= 1
        assert not torch.equal(fp8.twin(x), fp8.twin(other.view(E4M3).view(7, 48)))
    assert torch.equal(fp8.twin(x), fp8.twin(x))


def test_what_equal_leaves_to_stock(fp8):
    x = fp8.random((4, 4), E4M3)
    for other in (x.float(), x.to(E5M2)):
        with pytest.raises(RuntimeError):
            torch.equal(x, other)
        with pytest.raises(RuntimeError):
            torch.equal(fp8.twin(x), fp8.twin(other))
