"""The fill value in every dtype, and what is refused: exactly as the CPU kernel has it."""

import math

import pytest
import torch

VALUES = (
    0, 1, -1, 2, 127, 128, -128, -129, 255, 256, -255, -256, 32767, 65504, 65535, 65536, 2**31 - 1, 2**31,
    -(2**31), 2**32,
    2**53 + 1, 2**63 - 1, -(2**63), True, False, 0.0, -0.0, 0.5, 1.5, -2.5, 1e-8, 1e-45, 240.0, 448.0, 464.0, 57344.0,
    6e4,
    65519.0, 65520.0, 1e9, 3.5e38, 1e300, math.inf, -math.inf, math.nan, 1 + 0j, 1j, complex(2, -3),
    complex(-0.0, math.nan),
)  # fmt: skip


def outcome(call):
    try:
        return call(), None
    except (RuntimeError, TypeError, ValueError, OverflowError) as error:
        return None, (type(error), str(error))


@pytest.mark.filterwarnings("ignore:ComplexHalf support is experimental")
def test_every_value_in_every_dtype(padding, faultless_stock):
    accepted = refused = 0
    for dtype in padding.dtypes:
        x = padding.random((2, 5), dtype)
        on_device = padding.twin(x)
        for value in VALUES:
            expected, error = outcome(lambda: torch.constant_pad_nd(x, (1, 2), value))  # noqa: B023
            before = padding.taken
            actual, error_here = outcome(lambda: torch.constant_pad_nd(on_device, (1, 2), value))  # noqa: B023
            assert error_here == error, (dtype, value)
            if error is None:
                assert padding.taken == before + 1, (dtype, value)
                padding.assert_same(actual, expected, (dtype, value))
                accepted += 1
            else:
                refused += 1
    assert accepted > 500 and refused > 100


@pytest.mark.filterwarnings("ignore:ComplexHalf support is experimental")
def test_one_element_is_filled_by_rules_of_its_own(padding, faultless_stock):
    """The CPU's fill_ of one element refuses values that it takes for more (complex32: 70000 overflows)."""
    for dtype in padding.dtypes:
        x = torch.zeros(0, dtype=dtype)
        for value in (*VALUES, 7e4):
            expected, error = outcome(lambda: torch.constant_pad_nd(x, (0, 1), value))  # noqa: B023
            result, wrong = outcome(lambda: torch.constant_pad_nd(padding.twin(x), (0, 1), value))  # noqa: B023
            assert (wrong or [None])[0] == (error or [None])[0], (dtype, value)  # stock words its error in its own way
            if error is None:
                padding.assert_same(result, expected, (dtype, value))


def test_nan_payload_of_the_fill_value(padding):
    import struct

    nan = struct.unpack("d", struct.pack("Q", 0x7FF8123450000000))[0]
    for dtype in (torch.float32, torch.float16, torch.bfloat16):
        padding.check(torch.zeros(5, dtype=dtype), (1, 3), nan)


def test_a_value_is_not_looked_at_when_nothing_is_added(padding):
    padding.check(torch.ones(4, dtype=torch.int8), (-1, -1), 0)
    x = torch.ones(4, dtype=torch.int8)
    expected = torch.constant_pad_nd(x, (-1, -1), 300)
    padding.assert_same(torch.constant_pad_nd(padding.twin(x), (-1, -1), 300), expected)


@pytest.mark.parametrize("value", [1e6, -0.0, 1e-45, math.inf, -math.inf, math.nan, 1j, 2**64])
def test_no_value_is_looked_at_in_any_dtype(padding, value):
    """The kernel takes such calls, whatever the value: nothing is left to stock and its errors."""
    for dtype in padding.dtypes:
        x = padding.random((3, 5), dtype)
        for pad in ((0, 0), (-1, 0), (-1, -2, 0, -1)):
            expected, error = outcome(lambda: torch.constant_pad_nd(x, pad, value))  # noqa: B023
            actual, error_here = outcome(lambda: torch.constant_pad_nd(padding.twin(x), pad, value))  # noqa: B023
            assert error_here == error, (dtype, pad)
            if error is None:
                padding.assert_same(actual, expected, (dtype, pad))


@pytest.mark.parametrize(
    "sizes, pad",
    [
        ((2, 3), (1,)), ((2, 3), (1, 1, 1)), ((2, 3), (1, 1) * 3), ((), (1, 1)), ((2, 3), (-4, 0)), ((2, 3), (0, -4)),
        ((2, 3), (-2, -2)), ((2, 3), (-4, 9)), ((2, 3), (9, -4)), ((2, 3), (0, 0, -3, 0)), ((0, 3), (0, 0, -1, 2)),
        ((2, 3, 4), (1, 1, -1, -3)),
    ],
)  # fmt: skip
def test_wrong_pads_raise_the_cpu_kernels_error(padding, faultless_stock, sizes, pad):
    x = torch.zeros(sizes)
    expected, error = outcome(lambda: torch.constant_pad_nd(x, pad))
    assert error is not None and error[0] is RuntimeError
    before = padding.taken
    actual, error_here = outcome(lambda: torch.constant_pad_nd(padding.twin(x), pad))
    assert error_here == error
    assert padding.taken == before


def test_crops_to_nothing_are_not_errors(padding, launches):
    for pad in ((-3, 0), (0, -3), (-1, -2)):
        assert padding.check(torch.zeros(2, 3), pad).numel() == 0
    assert not launches, "an output without elements needs no launch"
    padding.check(torch.zeros(2, 3), (-3, 4))


def test_dtypes_that_the_cpu_cannot_fill_are_left_to_stock(padding):
    supports = padding.modules.host.supports
    assert not supports(torch.zeros(4, dtype=torch.uint8, device="mps").view(torch.uint4), (1, 1))
    assert not supports(torch.zeros(4), (1, 1)), "nor tensors of other devices"
