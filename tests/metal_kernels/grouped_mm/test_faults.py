"""What stock does, by torch release: shown on stock first, then with the pack. And what auto patches."""

import contextlib
import importlib

import pytest
import torch
from family import stock_of


@pytest.fixture
def faulty(grouped):
    """faulty("2.9"): that torch's stock, and the pack in auto mode on it."""
    with contextlib.ExitStack() as entered:
        yield lambda version: entered.enter_context(stock_of(grouped, version))


def product(grouped):
    a, b, offs = grouped.random(9, 16), grouped.random(3, 8, 16).mT, grouped.ends(2, 5, 9)
    return a, b, offs, [grouped.twin(t) for t in (a, b, offs)]


@pytest.mark.parametrize("version", ["2.9", "2.12", "2.13", "2.14"])
def test_stock_waits_for_the_device(grouped, faulty, close, version):
    from softmetal import counters

    faulty(version)
    a, b, offs, twins = product(grouped)
    with grouped.metal_kernels.using(grouped_mm="off"):
        counters.reset()
        close(torch._grouped_mm(twins[0], twins[1], offs=twins[2]), a, b, offs)
    assert counters.host_copies() > 0 and counters.calls("aten::mm") == 3  # one product after the other
    torch._grouped_mm(twins[0], twins[1], offs=twins[2])  # the first use is checked
    counters.reset()
    y = torch._grouped_mm(twins[0], twins[1], offs=twins[2])
    assert counters.host_copies() == counters.synchronizations() == counters.calls("aten::mm") == 0
    close(y, a, b, offs)


@pytest.mark.parametrize("version", ["2.9", "2.13", "2.15"])
def test_stock_cannot_count_integers(grouped, faulty, version):
    """transformers asks for it before it multiplies: Qwen3-VL-MoE stops there."""
    faulty(version)
    chosen = torch.tensor([0, 1, 2, 1, 0], dtype=torch.int32)
    with grouped.metal_kernels.using(grouped_mm="off"):
        with pytest.raises(NotImplementedError, match="not implemented for 'Int'"):
            torch.histc(chosen.to("mps"), bins=3, min=0, max=2)
    assert torch.histc(chosen.to("mps"), bins=3, min=0, max=2).tolist() == [2, 2, 1]


def test_auto_leaves_alone_what_2_15_does_well(grouped, faulty, close):
    faulty("2.15")
    a, b, offs, twins = product(grouped)
    before = grouped.taken
    close(torch._grouped_mm(twins[0], twins[1], offs=twins[2]), a, b, offs)
    torch.topk(twins[0], 3)
    assert grouped.taken == before
    torch.histc(twins[2], 3)
    assert grouped.taken == before + 1


@pytest.mark.parametrize("version", ["2.9", "2.13", "2.14", "2.15"])
def test_the_reason_says_what_is_patched(grouped, faulty, version):
    faulty(version)
    environment = importlib.import_module(f"{grouped.metal_kernels.__name__}.environment").detect()
    need = grouped.modules.grouped_mm.KERNEL.need(environment)
    assert need.patch and ("histc" if version == "2.15" else "loops") in need.reason
