"""What every kernel promises beside its values: the same bits under any schedule, and no waiting for the device."""

import pytest
import torch

from conformance import harness, library
from conformance.table import groups

COMPACT = groups("quick", library.COMPACT)
SCHEDULES = (1, 7, 2026)


@pytest.fixture(scope="module")
def patched():
    with harness.installed("2.13", "on"):
        yield


def outputs(case):
    operation = library.OPERATIONS[case.op]
    result = operation.call(*library.twin(operation.make(case), "mps"))
    return result if isinstance(result, (tuple, list)) else (result,)


@pytest.mark.parametrize("group", COMPACT)
def test_the_same_bits_under_any_schedule(patched, group):
    from softmetal import shader

    for case in COMPACT[group]:
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
