"""The cost model: bytes and flops of calls whose figures can be worked out by hand."""

import importlib

import pytest
import torch
from pack import load

cost = importlib.import_module(f"{load().metal_kernels.__name__}.cost")


def test_linear_reads_its_weight_once_and_multiplies():
    x, weight, bias = torch.zeros(8, 64), torch.zeros(32, 64), torch.zeros(32)
    made = cost.operation("linear", (x, weight, bias), (torch.zeros(8, 32),))
    assert made == cost.Cost(4 * (8 * 64 + 32 * 64 + 32 + 8 * 32), 2 * 8 * 32 * 64)


def test_a_pad_reads_its_input_and_writes_its_output():
    x = torch.zeros(2, 3, 5, dtype=torch.float16)
    made = cost.operation("constant_pad_nd", (x, [1, 1]), (torch.nn.functional.pad(x, (1, 1)),))
    assert made == cost.Cost(2 * (30 + 42))


def test_what_a_stride_of_zero_repeats_is_read_once():
    x = torch.zeros(1, 8).expand(100, 8)
    made = cost.operation("_softmax", (x, -1, False), (torch.softmax(x, -1),))
    assert made == cost.Cost(4 * (8 + 800))


def test_experts_that_no_row_uses_are_not_read():
    rows, experts, n, k = 4, 32, 16, 8
    a, b = torch.zeros(rows, k, dtype=torch.bfloat16), torch.zeros(experts, k, n, dtype=torch.bfloat16)
    offs = torch.arange(1, experts + 1, dtype=torch.int32)
    made = cost.operation("_grouped_mm", (a, b, offs), (torch.zeros(rows, n, dtype=torch.bfloat16),))
    assert made.bytes == 2 * (rows * k + rows * n * k + rows * n) + 4 * experts
    assert made.flops == 2 * rows * n * k
    one = cost.operation("_grouped_mm", (a, b, offs), (torch.zeros(rows, n, dtype=torch.bfloat16),), active=1)
    assert made.bytes - one.bytes == 2 * 3 * n * k


def test_a_copy_reads_one_side_and_writes_the_other():
    to, source = torch.zeros(10, dtype=torch.float16), torch.zeros(10)
    assert cost.operation("copy_", (to, source), (to,)) == cost.Cost(60)


def test_time_and_share_of_a_chip():
    made = cost.Cost(400_000_000)
    rate = cost.bandwidth("Apple M2 Max")
    assert made.seconds(rate) == pytest.approx(1e-3)
    assert made.share(2e-3, rate) == pytest.approx(0.5)
    assert cost.bandwidth("software Metal") is None


def test_every_chip_from_m1_to_m5_is_there():
    for generation in range(1, 6):
        rates = [cost.bandwidth(f"Apple M{generation}{kind}") for kind in ("", " Pro", " Max")]
        assert None not in rates and rates == sorted(rates)
    assert all(0 < smaller < cost.APPLE_BANDWIDTH[chip] for chip, smaller in cost.SMALLER.items())


def test_what_pays():
    assert cost.pays(1.0, 2.0) and not cost.pays(1.0, 1.0) and not cost.pays(1.0, 1.01)
