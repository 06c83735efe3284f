"""The table on the software device: every case against the CPU, taken by our kernels, under three torches' faults."""

import collections
import sys

import pytest
import torch

from conformance import harness, library
from conformance.table import CASES, groups

QUICK, FULL, DEVICE = groups("quick"), groups("full"), groups("device")
COMPACT = groups("quick", library.COMPACT)
SOFTMAX = ("softmax", "log_softmax", "softmax_backward", "log_softmax_backward")
# Beside 2.13, in mode auto: what of the table is stock's there.
STOCKS = {"2.9": lambda case: False, "2.15": harness.left_to_stock}


@pytest.fixture(scope="module")
def patched():
    with harness.installed("2.13", "on"):
        yield


@pytest.fixture(scope="module", params=STOCKS)
def another_torch(request):
    with harness.installed(request.param):
        yield request.param


@pytest.mark.parametrize("group", QUICK)
def test_quick_cases(patched, group):
    harness.judge_all(QUICK[group])


@pytest.mark.full
@pytest.mark.parametrize("group", FULL)
def test_slow_cases(patched, group):
    harness.judge_all(FULL[group])


@pytest.mark.parametrize("group", COMPACT)
def test_compact_cases_on_other_torches(another_torch, group):
    harness.judge_all(COMPACT[group], STOCKS[another_torch])


@pytest.mark.full
@pytest.mark.parametrize("group", QUICK)
def test_quick_cases_on_other_torches(another_torch, group):
    if another_torch == "2.9" and group.startswith("scaled_mm_v2 "):
        assert not hasattr(torch.nn.functional, "scaled_mm"), "which came with 2.10"
        return
    harness.judge_all(QUICK[group], STOCKS[another_torch])


@pytest.mark.full
@pytest.mark.skipif(sys.platform != "darwin", reason="the real sizes of the hot shapes are for a GPU")
@pytest.mark.parametrize("group", DEVICE)
def test_real_sizes(patched, group):
    harness.judge_all(DEVICE[group])


class TestTheTableItself:
    def test_every_kernel_and_operation_is_in_it(self):
        ops = {case.op for case in CASES}
        missing = set() if hasattr(torch.nn.functional, "scaled_mm") else {"scaled_mm_v2"}
        assert ops == set(library.OPERATIONS) - missing
        assert {library.OPERATIONS[case.op].kernel for case in library.COMPACT} == {
            "pad", "softmax", "linear", "grouped_mm", "fp8",
        }  # fmt: skip

    def test_cases_have_one_name_each(self):
        """Their data come from it."""
        by_id = collections.defaultdict(set)
        for case in CASES:
            by_id[case.id].add((case.op, case.dtype, case.shapes, case.layout, str(dict(case.options))))
        assert [name for name, cases in by_id.items() if len(cases) > 1] == []

    def test_tolerances_are_justified(self):
        for operation in library.OPERATIONS.values():
            assert operation.tolerance.why and "\n" not in operation.tolerance.why
            assert 0 <= operation.tolerance.ulps <= 1

    @pytest.mark.parametrize("size", [(2**16 + 1,), (32768,), (151936,)], ids=str)
    def test_the_sizes_that_must_be_in_it(self, size):
        """More rows than 16 bits count, a long K, a vocabulary: for every op that has such a dimension."""
        found = {case.op for case in CASES if case.size != "device" and any(size[0] in shape for shape in case.shapes)}
        wanted = {
            2**16 + 1: {*SOFTMAX, "pad", "linear", "grouped_mm", "topk", "fp8_encode", "fp8_linear", "scaled_mm",
                        "fp8_quantize"},
            32768: {*SOFTMAX, "linear", "grouped_mm", "fp8_linear", "scaled_mm", "fp8_quantize"},
            151936: {*SOFTMAX, "linear", "grouped_mm", "fp8_linear"},
        }[size[0]]  # fmt: skip
        assert wanted <= found

    def test_data_are_the_cases_own_and_the_same_again(self):
        case, other = (c for c in CASES if c.op == "linear" and c.shapes[0] == (16, 64) and c.layout == "contiguous"
                       and c.dtype is torch.float32)  # fmt: skip
        make = library.OPERATIONS["linear"].make
        assert torch.equal(make(case)[0], make(case)[0]) and not torch.equal(make(case)[0], make(other)[0])
        before = torch.random.get_rng_state()
        make(case)
        assert torch.equal(torch.random.get_rng_state(), before)


class TestTheComparison:
    CASE = library.Case("linear", torch.bfloat16, ((3, 64), (5, 64)))

    def expected(self):
        operation = library.OPERATIONS["linear"]
        arguments = operation.make(self.CASE)
        (expected,) = operation.reference(*arguments)
        return expected.value.to(torch.bfloat16), (expected,), operation.tolerance

    def test_the_rounded_result_is_right(self):
        rounded, expected, tolerance = self.expected()
        assert 0 < library.compare(rounded, expected, tolerance, "x") <= 1

    @pytest.mark.parametrize("change", [
        lambda y: y.view(torch.int16).add(1).view(torch.bfloat16),  # an ulp
        lambda y: y.clone().index_fill_(0, torch.tensor([1]), torch.nan),
        lambda y: y.clone().index_fill_(0, torch.tensor([1]), torch.inf),
        lambda y: y[:2],
        lambda y: y.float(),
        lambda y: (y, y),
        lambda y: y.t().contiguous().t(),
    ])  # fmt: skip
    def test_what_is_wrong_is_seen(self, change):
        rounded, expected, tolerance = self.expected()
        with pytest.raises(library.Mismatch, match="^x: "):
            library.compare(change(rounded), expected, tolerance, "x")

    def test_bits(self):
        """-0 is not 0, and one NaN not another."""
        operation = library.OPERATIONS["pad"]
        x = torch.tensor([0.0, torch.nan])
        expected = operation.reference(x, (0, 0), 0)
        assert library.compare(x.clone(), expected, operation.tolerance, "x") == 0
        other_nan = torch.tensor([0, 0x7FC00001], dtype=torch.int32).view(torch.float32)
        for other in (torch.tensor([-0.0, torch.nan]), other_nan):
            with pytest.raises(library.Mismatch, match="1 of 2 elements differ"):
                library.compare(other, expected, operation.tolerance, "x")

    @pytest.mark.parametrize("dtype", (torch.float16, torch.float32, torch.bool, torch.complex64), ids=str)
    def test_bits_of_one_element_with_a_stride_of_zero(self, dtype):
        operation = library.OPERATIONS["pad"]
        x = torch.ones(3).to(dtype).as_strided((1,), (0,), 1)
        expected = operation.reference(x, (0, 0), 0)
        assert library.compare(x, expected, operation.tolerance, "x") == 0
        with pytest.raises(library.Mismatch, match="elements differ"):
            library.compare(torch.zeros(3).to(dtype).as_strided((1,), (0,)), expected, operation.tolerance, "x")
