"""Offsets past 32 bits, in real memory: two rows of a weight more than 2^31 elements apart."""

import pytest
import torch
import torch.nn.functional as F

E5M2 = torch.float8_e5m2
STRIDE = 2**31 + 16

pytestmark = pytest.mark.full


@pytest.fixture
def apart(fp8):
    """(the weight [2, 64] on mps, its twin with rows side by side on the CPU)"""
    weight = fp8.random((2, 64), E5M2)
    storage = torch.zeros(STRIDE + 64, dtype=torch.uint8, device="mps")
    for row, begin in enumerate((0, STRIDE)):
        storage[begin : begin + 64] = fp8.twin(weight[row].clone().view(torch.uint8))
    yield storage.view(E5M2).as_strided((2, 64), (STRIDE, 1)), weight
    del storage
    torch.mps.empty_cache()


def test_casts_and_moves(fp8, apart):
    ours, weight = apart
    fp8.assert_same(ours.float(), weight.float())
    fp8.assert_same(ours.t().contiguous(), weight.t().contiguous())
    fp8.assert_same(torch.cat([ours, ours]), torch.cat([weight, weight]))


@pytest.mark.parametrize("rows", [1, 3, 20])
def test_linear(fp8, apart, rows):
    ours, weight = apart
    for left, right, length in ((ours, weight, 64), (ours.t(), weight.t(), 2)):
        x = torch.randn(rows, length, generator=torch.Generator().manual_seed(rows))
        fp8.assert_close("fp8_linear", F.linear(x.to("mps"), left), x, right, None, None)
