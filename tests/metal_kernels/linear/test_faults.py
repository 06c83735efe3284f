"""What stock computes wrongly, by torch release: shown on stock first, then right with the pack; what auto patches."""

import contextlib
import importlib

import pytest
import torch
import torch.nn.functional as F
from family import stock_of


@pytest.fixture
def faulty(lin):
    """faulty("2.9", macos=...): that torch's stock, and the pack in auto mode on it."""
    with contextlib.ExitStack() as entered:
        yield lambda version, **options: entered.enter_context(stock_of(lin, version, **options))


def stock_is_right(lin, close, *tensors):
    with lin.metal_kernels.using(linear="off"):
        y = F.linear(*map(lin.twin, tensors))
    try:
        close(y, *tensors)
    except AssertionError:
        return False
    return True


def report_3(lin, length=4, dtype=torch.float32):
    """The report's own input has a length of 32."""
    x, weight = lin.random(65537, 2, length, dtype=dtype), lin.random(length, length, dtype=dtype)
    return x, weight, lin.random(length, dtype=dtype)


@pytest.mark.parametrize(("version", "length"), [("2.9", 4), ("2.12", 4), ("2.13", 32)])
def test_report_3_a_bias_lost_past_65536_batches(lin, faulty, close, version, length):
    faulty(version)
    tensors = report_3(lin, length)
    assert not stock_is_right(lin, close, *tensors)
    lin.check(*tensors)


def test_report_3_in_other_forms(lin, faulty):
    faulty("2.13")
    x, weight, bias = report_3(lin, dtype=torch.float16)
    lin.check(x.view(1, 65537, 2, 4), weight, bias)
    lin.check(x.view(65537, 1, 2, 4)[..., :3], weight[:, :3], bias)
    lin.check(x, weight.t().contiguous().t(), bias)


@pytest.mark.parametrize("version", ["2.14", "2.15"])
def test_many_rows_are_left_to_a_stock_that_is_right(lin, faulty, close, version):
    faulty(version)
    x, weight, bias = report_3(lin)
    for tensors in ((x, weight, bias), (x[:40], weight.t(), bias), (x[:40, :1], weight, bias)):
        before = lin.taken
        close(F.linear(*map(lin.twin, tensors)), *tensors)
        assert lin.taken == before


def test_many_rows_without_fault_are_left_to_stock(lin, faulty, close):
    faulty("2.13")
    x, weight, bias = report_3(lin)
    for tensors in ((x[:65536], weight, bias), (x, weight), (x.view(-1, 4), weight, bias), (x[:40], weight.t(), bias)):
        before = lin.taken
        close(F.linear(*map(lin.twin, tensors)), *tensors)
        assert lin.taken == before


@pytest.mark.parametrize("bias", [True, False])
def test_report_4_a_weight_that_is_not_contiguous(lin, faulty, close, bias):
    faulty("2.9")
    x, weight = lin.random(64, 128), lin.random(128, 384, seed=1).t()
    tensors = (x, weight, lin.random(384)) if bias else (x, weight)
    assert not stock_is_right(lin, close, *tensors)
    lin.check(*tensors)
    lin.check(x.view(4, 16, 128), *tensors[1:])
    few = (x[:7], *tensors[1:])
    assert not stock_is_right(lin, close, *few)
    lin.check(*few)
    lin.check(x[:, :100], weight[::2, 3:103])  # a view that is no transpose of a contiguous one


@pytest.mark.parametrize("batches", [3, 80])
def test_the_bias_of_vectors_on_macos_26(lin, faulty, close, batches):
    faulty("2.13", macos="26.0")
    tensors = lin.random(batches, 1, 2), lin.random(192, 2, seed=1), lin.random(192, seed=2)
    assert not stock_is_right(lin, close, *tensors)
    lin.check(*tensors)


@pytest.mark.parametrize("version", ["2.9", "2.12", "2.13", "2.14", "2.15"])
def test_auto(lin, faulty, version):
    """One row: where the torch is older than 2.15. Two to sixteen: everywhere."""
    faulty(version)
    environment = importlib.import_module(f"{lin.metal_kernels.__name__}.environment").detect()
    assert lin.modules.linear.KERNEL.need(environment).patch
    weight = torch.zeros(8, 16, device="mps")
    took = {}
    for rows in (1, 2, 3, 15, 16, 17):
        before = lin.taken
        F.linear(torch.zeros(rows, 16, device="mps"), weight)
        F.linear(torch.zeros(rows, 1, 16, device="mps"), weight)
        took[rows] = lin.taken - before
    assert took == {1: 0 if version == "2.15" else 2, 2: 2, 3: 2, 15: 2, 16: 2, 17: 0}


def test_on_takes_what_auto_leaves(lin, faulty):
    faulty("2.15")
    x, weight = torch.zeros(1, 16, device="mps"), torch.zeros(8, 16, device="mps")
    before = lin.taken
    with lin.metal_kernels.using(linear="on"):
        F.linear(x, weight)
    F.linear(x, weight)
    assert lin.taken == before + 1
