"""An access that strays far from its buffer is caught wherever it lands: in another buffer of the launch too."""

import pytest
import softmetal
import torch
from softmetal import shader

pytestmark = pytest.mark.kernel_faults
SEEDS = range(5)
SOURCE = """
#include <metal_stdlib>
using namespace metal;

kernel void reads(device const int* x, device int* y, constant long& away, uint i [[thread_position_in_grid]]) {
  y[i] = x[i + away];
}

kernel void writes(device const int* x, device int* y, constant long& away, uint i [[thread_position_in_grid]]) {
  y[i + away] = x[i];
}

kernel void adds(device int* x, device int* y, constant long& away, uint i [[thread_position_in_grid]]) {
  atomic_fetch_add_explicit((device atomic_int*)(y + i + away), x[i], memory_order_relaxed);
}

kernel void values(constant long* a, constant long* b, device long* y, uint i [[thread_position_in_grid]]) {
  y[i] = a[b[0] + i];
}

kernel void constants(constant int* x, device int* y, constant long& away, uint i [[thread_position_in_grid]]) {
  y[i] = x[i + away];
}

kernel void same(device const int* x, device const int* y, device bool* equal) { equal[0] = x == y; }

struct listed {
  device int* parts[3];
};

kernel void gathers(constant listed& from, device int* y, constant long& away, uint i [[thread_position_in_grid]]) {
  y[i] = from.parts[0][i + away] + from.parts[1][i] + from.parts[2][i];
}

kernel void scatters(device const int* x, constant listed& to, uint i [[thread_position_in_grid]]) {
  to.parts[i % 3][i / 3] = x[i];
}

kernel void through(device const int* const constant* from, device int* y, constant long& n,
                    uint i [[thread_position_in_grid]]) {
  y[i] = 0;
  for (long k = 0; k < n; ++k) y[i] += from[k][i];
}
"""


@pytest.fixture(scope="module")
def lib():
    softmetal.activate()
    return torch.mps.compile_shader(SOURCE)


def ints(n, start=0):
    return torch.arange(start, start + n, dtype=torch.int32).to("mps")


def elements_between(a, b):
    return (b.data_ptr() - a.data_ptr()) // a.element_size()


def fault_of(kernel, *arguments, threads):
    with pytest.raises(shader.KernelFault) as caught:
        kernel(*arguments, threads=threads)
    assert caught.value.kind == "out_of_bounds", caught.value
    return caught.value


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("views", [False, True], ids=["two tensors", "views of one"])
def test_into_another_buffer_of_the_launch(lib, views, seed):
    """Both ways, and to every element of the other one: to its first, to its last, and to what was not written yet."""
    for gap in (0, 100):
        whole = ints(128 + gap)
        pairs = [(whole[:64], whole[-64:]), (whole[-64:], whole[:64])] if views else [(ints(64), ints(64))]
        for x, y in pairs:
            away = elements_between(x, y)
            with shader.schedule(seed=seed):
                fault = fault_of(lib.reads, x, y, away, threads=64)
                assert (fault.buffer, fault.name, fault.size) == (0, "x", 256)
                assert fault.element == away + fault.lanes[0].thread % 64
                fault = fault_of(lib.writes, x, y, -away, threads=64)
                assert (fault.buffer, fault.name) == (1, "y")
                fault = fault_of(lib.adds, x, y, -away, threads=64)
                assert (fault.buffer, fault.name) == (1, "y")


@pytest.mark.parametrize("away", [1, -1])
@pytest.mark.parametrize(("kernel", "name"), [("reads", "x"), ("constants", "x"), ("writes", "y"), ("adds", "y")])
def test_one_element_past_whatever_is_adjacent(lib, kernel, name, away):
    """On both sides of each buffer lies another one of the same launch, without a byte between."""
    for seed in SEEDS:
        whole = ints(192)
        x, y = (whole[64:128], whole[128:]) if (name == "x") == (away == 1) else (whole[128:], whole[64:128])
        with shader.schedule(seed=seed):
            fault = fault_of(getattr(lib, kernel), x, y, away, threads=64)
        assert (fault.name, fault.size, fault.element) == (name, 256, 64 if away == 1 else -1)


@pytest.mark.parametrize("away", [64, -1, 2**16, -(2**20), 2**31, -(2**31), 2**32 - 1, 2**34])
def test_as_far_as_an_index_of_32_bits_leads(lib, away):
    x, y = ints(64), ints(64)
    filler = [ints(2**18) for _ in range(4)]  # other live tensors lie all round
    fault = fault_of(lib.reads, x, y, away, threads=1)
    assert fault.name == "x" and fault.element == away
    fault = fault_of(lib.writes, x, y, away, threads=1)
    assert fault.name == "y"
    assert torch.equal(x.cpu(), y.cpu()) and all(torch.equal(f.cpu(), filler[0].cpu()) for f in filler)


def test_from_one_value_into_another(lib):
    y = torch.zeros(1, dtype=torch.int64, device="mps")
    lib.values([1, 2, 3], 2, y)
    assert y.item() == 3
    for index in (3, -1, 2**14, 2**31, -(2**31)):
        assert fault_of(lib.values, [1, 2, 3], index, y, threads=1).name == "a"


def test_one_tensor_bound_twice_is_one_address(lib):
    x, equal = ints(64), torch.zeros(1, dtype=torch.bool, device="mps")
    lib.same(x, x, equal, threads=1)
    assert equal.item()
    lib.same(x, ints(64), equal, threads=1)
    assert not equal.item()
    lib.same(x, x[1:], equal, threads=1)
    assert not equal.item()


class TestLists:
    """A list of tensors is an array of their addresses: each is as far as it reaches, and no farther."""

    def test_reads_and_writes(self, lib):
        whole = ints(96).view(3, 32)
        y = torch.zeros(32, dtype=torch.int32, device="mps")
        lib.gathers(list(whole.unbind(0)), y, 0, threads=32)
        assert torch.equal(y.cpu(), whole.cpu().sum(0, dtype=torch.int32))
        lib.through(tuple(whole.unbind(0)), y, 2, threads=32)
        assert torch.equal(y.cpu(), whole.cpu()[:2].sum(0, dtype=torch.int32))
        parts = [torch.empty(4, dtype=torch.int32, device="mps") for _ in range(3)]
        lib.scatters(ints(12), parts, threads=12)
        assert [part.tolist() for part in parts] == [[0, 3, 6, 9], [1, 4, 7, 10], [2, 5, 8, 11]]

    def test_as_many_as_setbytes_takes(self, lib):
        whole = torch.ones(512, 4, dtype=torch.int32, device="mps")
        y = torch.zeros(4, dtype=torch.int32, device="mps")
        lib.through(list(whole.unbind(0)), y, 512, threads=4)
        assert y.tolist() == [512] * 4
        with pytest.raises(RuntimeError, match="4096"):
            lib.through([*whole.unbind(0), y], y, 513, threads=4)

    @pytest.mark.parametrize("away", [1, -1])
    def test_one_element_past_into_the_next(self, lib, away):
        whole = ints(96).view(3, 32)
        for seed in SEEDS:
            with shader.schedule(seed=seed):
                first = whole[1], whole[0], whole[2]
                fault = fault_of(lib.gathers, list(first), ints(32), away, threads=32)
            assert fault.name == "from[0]" and fault.element == (32 if away == 1 else -1) and fault.size == 128

    def test_a_pointer_past_the_list(self, lib):
        assert fault_of(lib.through, [ints(4)], ints(4), 2, threads=4).name == "from"

    def test_what_nobody_wrote(self, lib):
        fresh = torch.empty(4, dtype=torch.int32, device="mps")
        with pytest.raises(shader.KernelFault) as caught:
            lib.through([ints(4), fresh], ints(4), 2, threads=4)
        assert caught.value.kind == "uninitialised_read" and caught.value.name == "from[1]"

    def test_races_through_two_of_them(self, lib):
        whole = ints(8)
        with pytest.raises(shader.KernelFault) as caught:
            lib.scatters(ints(12), [whole[:4], whole[2:6], whole[4:]], threads=12)
        assert caught.value.kind == "race"

    def test_what_is_refused(self, lib):
        with pytest.raises(RuntimeError, match="Empty list/tuple can not be an argument to metal kernel"):
            lib.through([], ints(4), 0, threads=4)
        with pytest.raises(RuntimeError, match="Unable to cast Python instance"):
            lib.through([ints(4), 1], ints(4), 2, threads=4)
        with pytest.raises(RuntimeError, match="Unexpected argument types"):
            lib.through(["x"], ints(4), 2, threads=4)
        with pytest.raises(shader.KernelFault, match="is a tensor on cpu"):
            lib.through([torch.ones(4, dtype=torch.int32)], ints(4), 1, threads=4)
