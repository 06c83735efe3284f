"""What every kernel promises beside its values: the same bits under any schedule, and no waiting for the device."""

import pytest
import torch

from conformance import harness, library
from conformance.table import CASES, groups

COMPACT = groups("quick", library.COMPACT)
SCHEDULES = (1, 7, 2026)
# Sums that several SIMD-groups or threadgroups share, which the compact table is too small for.
SHARED = {
    ("linear", ((3, 40000), (2, 40000))), ("linear", ((16, 4096), (33, 4096))), ("softmax_backward", ((2, 40000),)),
    ("log_softmax", ((1, 128256),)), ("grouped_mm", ((4, 2880), (32, 2880, 24))), ("topk", ((2, 4096),)),
    ("fp8_linear", ((3, 4096), (5, 4096))), ("fp8_linear", ((16, 2064), (3, 2064))),
    ("fp8_linear", ((1, 2052), (3, 2052))), ("fp8_quantize", ((70000,),)), ("histc", ((2**16 + 5,),)),
}  # fmt: skip
SCHEDULED = groups("quick", (*library.COMPACT, *(case for case in CASES if (case.op, case.shapes) in SHARED)))


@pytest.fixture(scope="module")
def patched():
    with harness.installed("2.13", "on"):
        yield


def outputs(case):
    operation = library.OPERATIONS[case.op]
    result = operation.call(*library.twin(operation.make(case), "mps"))
    return result if isinstance(result, (tuple, list)) else (result,)


def test_shared_sums_are_in_the_table():
    assert SHARED <= {(case.op, case.shapes) for case in CASES}


@pytest.mark.parametrize("group", SCHEDULED)
def test_the_same_bits_under_any_schedule(patched, group):
    from softmetal import shader

    for case in SCHEDULED[group]:
        seen = []
        for seed in SCHEDULES:
            with shader.schedule(seed=seed):
                seen.append([library.bits(output) for output in outputs(case)])
        for other in seen[1:]:
            assert all(torch.equal(a, b) for a, b in zip(seen[0], other, strict=True)), case.id


@pytest.mark.parametrize("group", COMPACT)
def test_nothing_waits_for_the_device(patched, group):
    from softmetal import counters

    for case in COMPACT[group]:
        operation = library.OPERATIONS[case.op]
        arguments = library.twin(operation.make(case), "mps")
        operation.call(*arguments)  # the first use of a dtype is checked, which does wait
        counters.reset()
        operation.call(*arguments)
        assert counters.host_copies() == counters.synchronizations() == 0, case.id
