"""Shifts by the width and more: the amount is taken modulo the width, whatever the types, checked and unchecked."""

import numpy as np
import pytest
from softmetal.frontend import CompileError, compile
from softmetal.frontend.shifts import wrap_shifts
from softmetal.tests.frontend_driver import HEAD, run

AMOUNTS = [0, 1, 7, 8, 15, 16, 31, 32, 33, 40, 63, 64, 65, 96, 127, 200, 255, -1, -31, -64]
TYPES = {"int": np.int32, "uint": np.uint32, "long": np.int64, "ulong": np.uint64}
BITS = 0x89ABCDEF12345678


@pytest.mark.parametrize("checked", [True, False])
@pytest.mark.parametrize("name", TYPES)
def test_scalars(name, checked):
    dtype = np.dtype(TYPES[name])
    value = np.array([BITS], np.uint64).astype(dtype)
    amounts = np.array(AMOUNTS, np.int32)
    left, right, assigned = (np.zeros(len(amounts), dtype) for _ in range(3))
    source = HEAD + f"""kernel void f(device const {name}* x, device const int* n, device {name}* left,
        device {name}* right, device {name}* assigned, uint i [[thread_position_in_grid]]) {{
      left[i] = x[0] << n[i];
      right[i] = x[0] >> n[i];
      {name} y = x[0];
      y <<= n[i];
      y >>= n[i];
      assigned[i] = y;
    }}"""
    run(source, "f", value, amounts, left, right, assigned, threads=len(amounts), checked=checked)
    within = (amounts & (8 * dtype.itemsize - 1)).astype(dtype)
    assert (left == value << within).all()
    assert (right == value >> within).all()
    assert (assigned == (value << within) >> within).all()


@pytest.mark.parametrize("name", ["char", "uchar", "short", "ushort"])
def test_short_types_are_shifted_as_int(name):
    dtype = {"char": np.int8, "uchar": np.uint8, "short": np.int16, "ushort": np.uint16}[name]
    value, amounts = np.array([0x85], np.uint8).astype(dtype), np.array(AMOUNTS, np.int32)
    left, right = np.zeros(len(amounts), np.int32), np.zeros(len(amounts), np.int32)
    source = HEAD + f"""kernel void f(device const {name}* x, device const int* n, device int* left, device int* right,
        uint i [[thread_position_in_grid]]) {{ left[i] = x[0] << n[i]; right[i] = x[0] >> n[i]; }}"""
    run(source, "f", value, amounts, left, right, threads=len(amounts))
    assert (left == value.astype(np.int32) << (amounts & 31)).all()
    assert (right == value.astype(np.int32) >> (amounts & 31)).all()


def test_vectors():
    """Each component by its own amount; a vector of short is shifted in 16 bits."""
    x, n = np.array([0x8001, 0x1234, -5, 77], np.int64), np.array([17, 33, -1, 64], np.int64)
    shorts, ints = np.zeros(8, np.int16), np.zeros(12, np.uint32)
    source = HEAD + """kernel void f(device const long* x, device const long* n, device short4* s, device uint4* u) {
      long4 a = long4(x[0], x[1], x[2], x[3]), b = long4(n[0], n[1], n[2], n[3]);
      s[0] = short4(a) << short4(b);
      s[1] = short4(a) >> short4(b);
      u[0] = uint4(a) << uint4(b);
      u[1] = uint4(a) >> uint4(b);
      u[2] = uint4(a) << 33u;
    }"""
    run(source, "f", x, n, shorts, ints, threads=1, group_size=1)
    short, word = x.astype(np.int16), x.astype(np.uint32)
    assert (shorts[:4] == short << (n & 15).astype(np.int16)).all()
    assert (shorts[4:] == short >> (n & 15).astype(np.int16)).all()
    assert (ints[:4] == word << (n & 31).astype(np.uint32)).all()
    assert (ints[4:8] == word >> (n & 31).astype(np.uint32)).all()
    assert (ints[8:] == word << np.uint32(1)).all()


@pytest.mark.parametrize("expression", ["x[0] << 32", "x[0] >> 40", "1u << 32", "x[0] << -1"])
def test_a_literal_out_of_range_is_refused(expression):
    with pytest.raises(CompileError, match=r"program_source:4:.*shift count (>= width of type|is negative)"):
        compile(HEAD + f"kernel void f(device uint* x) {{\nx[0] = {expression};\n}}\n")


def test_a_literal_in_range_stays_as_it_is():
    ir = "  %3 = shl nsw i32 %1, 31, !dbg !4\n"
    assert wrap_shifts(ir) == ir
    assert wrap_shifts("  %3 = lshr i64 %1, %2, !dbg !4\n") == (
        "  %shift.amount.1 = and i64 %2, 63, !dbg !4\n  %3 = lshr i64 %1, %shift.amount.1, !dbg !4\n"
    )
    assert wrap_shifts("  %3 = ashr exact <2 x i16> <i16 1, i16 -3>, splat (i16 17)\n") == (
        "  %shift.amount.1 = and <2 x i16> splat (i16 17), splat (i16 15)\n"
        "  %3 = ashr exact <2 x i16> <i16 1, i16 -3>, %shift.amount.1\n"
    )
