"""Every planted fault is caught, with the same verdict under every seed; its right twin passes, with the same bits."""

import threading
from pathlib import Path

import pytest
import torch
from softmetal.tests.planted import PLANTED, Planted, floats, line_of, zeros

pytestmark = pytest.mark.kernel_faults
SEEDS = range(5)


@pytest.fixture(scope="module")
def lib():
    import softmetal

    softmetal.activate()
    return torch.mps.compile_shader((Path(__file__).parent / "planted.metal").read_text())


def bound(case: Planted) -> tuple:
    """The arguments in the kernels' order: values come after the result where the kernel has them second."""
    made = case.arguments()
    return made[::-1] if made and not isinstance(made[0], torch.Tensor) else made


def result_of(arguments: tuple) -> torch.Tensor:
    return [a for a in arguments if isinstance(a, torch.Tensor)][-1].cpu()


@pytest.mark.parametrize("case", PLANTED, ids=lambda case: case.broken)
def test_caught_whatever_the_seed(lib, case):
    from softmetal import shader

    for seed in SEEDS:
        with shader.schedule(seed=seed), pytest.raises(shader.KernelFault) as caught:
            getattr(lib, case.broken)(*bound(case), threads=case.threads, group_size=case.group)
        fault = caught.value
        assert fault.kind == case.kind, fault
        assert fault.kernel == case.broken and fault.seed == seed
        assert len(fault.lanes) == case.lanes
        assert len({(lane.threadgroup, lane.thread) for lane in fault.lanes}) == case.lanes, (
            "two different lanes are named"
        )
        if case.name:
            assert fault.name == case.name
        if case.lines:
            assert sorted(lane.line for lane in fault.lanes) == sorted(
                line_of(text, case.broken) for text in case.lines
            ), fault
        for words in (*case.says, f"kernel '{case.broken}'", f"seed {seed}"):
            assert words in str(fault)


@pytest.mark.parametrize("case", [case for case in PLANTED if case.fixed], ids=lambda case: case.fixed)
def test_the_right_twin_passes_with_the_same_bits(lib, case):
    from softmetal import shader

    results = []
    for seed in SEEDS:
        arguments = bound(case)
        with shader.schedule(seed=seed):
            getattr(lib, case.fixed)(*arguments, threads=case.threads, group_size=case.group)
        results.append(result_of(arguments))
    assert all(torch.equal(result, results[0]) for result in results)
    assert results[0].any()


@pytest.mark.parametrize(
    "kernel", ["forever_broken", "barriers_forever_broken", "empty_forever_broken", "odd_forever_broken"]
)
def test_a_kernel_that_never_ends(lib, kernel):
    from softmetal import shader

    for seed in range(2):
        with (
            shader.schedule(seed=seed, watchdog_seconds=0.05),
            pytest.raises(shader.KernelFault, match="still running after 0.05 s") as caught,
        ):
            getattr(lib, kernel)(zeros(64, torch.int32), threads=64, group_size=64)
        assert caught.value.kind == "watchdog"
    test_the_device_goes_on_after_a_fault(lib)


def test_a_thread_that_waits_for_a_plain_flag(lib):
    """The thread that runs first decides what shows first: the wait without an end, or the race."""
    from softmetal import shader

    for seed in SEEDS:
        with shader.schedule(seed=seed, watchdog_seconds=0.05), pytest.raises(shader.KernelFault) as caught:
            lib.spin_broken(zeros(1, torch.int32), zeros(8, torch.int32), threads=8, group_size=8)
        assert caught.value.kind in ("race", "watchdog")


def test_an_unset_variable_is_no_plausible_number():
    source = """#include <metal_stdlib>
    kernel void unset(device float* y, uint i [[thread_position_in_grid]]) { float a; if (i > 100) a = 1; y[i] = a; }"""
    y = zeros(4)
    torch.mps.compile_shader(source).unset(y)
    assert y.isnan().all()


def test_the_device_goes_on_after_a_fault(lib):
    from softmetal import shader

    x, y = floats(64), zeros(64)
    for _ in range(20):
        with pytest.raises(shader.KernelFault):
            lib.early_return_broken(y, threads=64, group_size=64)
        lib.reverse_fixed(x, y, threads=64, group_size=64)
        assert torch.equal(y.cpu(), x.cpu().flip(0))


def test_a_fault_in_one_thread_leaves_the_others_alone(lib):
    from softmetal import shader

    wrong = []

    def faulty():
        for _ in range(30):
            try:
                lib.reverse_broken(floats(64), zeros(64), threads=64, group_size=64)
                wrong.append("no fault")
            except shader.KernelFault as fault:
                if fault.kind != "race":
                    wrong.append(fault)

    def right():
        try:
            for _ in range(30):
                x, y = floats(64), zeros(64)
                lib.reverse_fixed(x, y, threads=64, group_size=64)
                if not torch.equal(y.cpu(), x.cpu().flip(0)):
                    wrong.append("wrong result")
        except Exception as error:
            wrong.append(error)

    workers = [threading.Thread(target=work) for work in (faulty, right, right)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert not wrong


def test_zero_size_grid(lib):
    from softmetal import shader

    for threads in (0, (4, 0), (1, 1, 0)):
        with pytest.raises(shader.KernelFault) as caught:
            lib.fill_fixed(zeros(4, torch.int32), threads=threads)
        assert caught.value.kind == "zero_size_grid"
    with pytest.raises(shader.KernelFault):
        lib.fill_fixed(torch.empty(0, dtype=torch.int32, device="mps"))  # the default grid: numel of the first tensor


def test_1025_threads(lib):
    lib.fill_fixed(zeros(1024, torch.int32), group_size=1024)
    with pytest.raises(ValueError, match="Threadgroup size exceeds 1024 limit"):
        lib.fill_fixed(zeros(2050, torch.int32), group_size=1025)


def test_empty_tensors_and_missing_arguments_have_no_bytes(lib):
    from softmetal import shader

    with pytest.raises(shader.KernelFault, match="Nothing is bound") as caught:
        lib.fill_fixed(torch.empty(0, dtype=torch.int32, device="mps"), threads=4)
    assert caught.value.kind == "out_of_bounds" and caught.value.name == "y"
    with pytest.raises(shader.KernelFault, match="Nothing is bound") as caught:
        lib.write_past_fixed(floats(4), threads=4)
    assert caught.value.buffer == 1 and caught.value.name == "y"


@pytest.mark.parametrize("first", [0, 1])
def test_adjacent_views_of_one_storage(lib, first):
    """An overrun of one view would land in the other, which is bound too."""
    from softmetal import shader

    both = floats(128)
    views = both[:64], both[64:]
    x, y = views[first], views[1 - first]
    for seed in SEEDS:
        with shader.schedule(seed=seed), pytest.raises(shader.KernelFault) as caught:
            lib.read_past_broken(x, y, threads=64)
        assert caught.value.kind == "out_of_bounds" and caught.value.name == "x"
        with shader.schedule(seed=seed), pytest.raises(shader.KernelFault) as caught:
            lib.write_past_broken(x, y, threads=64)
        assert caught.value.name == "y"
    lib.write_past_fixed(x, y, threads=64)
    assert torch.equal(y.cpu(), x.cpu())


def test_a_buffer_is_what_the_tensor_reaches_and_not_its_storage(lib):
    from softmetal import shader

    column = torch.zeros(8, 8, device="mps")[:, 3]  # reaches elements 3, 11, ... 59 of 64
    y = zeros(57)
    lib.write_past_fixed(column, y, threads=57)
    with pytest.raises(shader.KernelFault) as caught:
        lib.write_past_fixed(column, zeros(64), threads=58)
    assert caught.value.kind == "out_of_bounds" and caught.value.size == 57 * 4


def test_a_vector_parameter_bound_off_its_alignment(lib):
    from softmetal import shader

    with pytest.raises(shader.KernelFault, match="needs 16-byte alignment.*starts at byte 4 of its storage") as caught:
        lib.vector_fixed(floats(65), zeros(65)[1:], threads=16)
    assert caught.value.kind == "misaligned" and caught.value.buffer == 1
    lib.vector_fixed(floats(65), zeros(68)[4:], threads=16)


def test_overlapping_views_stay_aliases(lib):
    """Views that overlap are one memory: a race between them shows."""
    from softmetal import shader

    both = floats(65)
    for seed in SEEDS:
        with shader.schedule(seed=seed), pytest.raises(shader.KernelFault) as caught:
            lib.write_past_fixed(both[:64], both[1:], threads=64)
        assert caught.value.kind == "race"


class TestUnwritten:
    def fresh(self, n=16, dtype=torch.int32):
        return torch.empty(n, dtype=dtype, device="mps")

    @pytest.mark.parametrize("dtype", [torch.int32, torch.float32])
    def test_element_left_out(self, lib, dtype):
        from softmetal import shader

        for seed in SEEDS:
            y = self.fresh(dtype=dtype)
            with shader.schedule(seed=seed):
                lib.fill_broken(y, threads=16)
            with pytest.raises(shader.KernelFault, match=r"element 5 \(index \(5,\)\)") as caught:
                shader.check_written(y)
            assert caught.value.kind == "unwritten" and caught.value.kernel == "fill_broken"
            with pytest.raises(RuntimeError, match="fill_broken"):
                y.cpu()

    def test_the_index_is_of_the_view(self, lib):
        from softmetal import shader

        y = torch.empty(4, 4, dtype=torch.int32, device="mps")
        lib.fill_broken(y, threads=16)
        with pytest.raises(shader.KernelFault, match=r"index \(1, 1\)"):
            shader.check_written(y)
        with pytest.raises(shader.KernelFault, match=r"element 5 \(index \(1, 1\)\)"):
            shader.check_written(y.t())
        shader.check_written(y[2:])

    def test_strict_launches(self, lib):
        from softmetal import shader

        with shader.schedule(strict=True):
            lib.fill_fixed(self.fresh(), threads=16)
            with pytest.raises(shader.KernelFault, match="never written"):
                lib.fill_broken(self.fresh(), threads=16)

    def test_all_written(self, lib):
        from softmetal import runtime, shader

        before = runtime.load().smr_tracked_blocks()
        y = self.fresh()
        lib.fill_fixed(y, threads=16)
        shader.check_written(y)
        assert runtime.load().smr_tracked_blocks() == before
        assert not y.cpu().any()

    def test_written_later_by_an_op(self, lib):
        from softmetal import shader

        y = self.fresh()
        lib.fill_broken(y, threads=16)
        y.fill_(3)
        shader.check_written(y)
        assert (y.cpu() == 3).all()

    def test_a_kernel_reads_what_nobody_wrote(self, lib):
        from softmetal import shader

        for seed in SEEDS:
            with shader.schedule(seed=seed), pytest.raises(shader.KernelFault) as caught:
                lib.write_past_fixed(self.fresh(64, torch.float32), zeros(64), threads=64)
            assert caught.value.kind == "uninitialised_read" and caught.value.name == "x"

    def test_only_the_unwritten_part_is(self, lib):
        from softmetal import shader

        x = self.fresh(64, torch.float32)
        x[:40] = 1
        lib.write_past_fixed(x, zeros(64), threads=40)
        with pytest.raises(shader.KernelFault) as caught:
            lib.write_past_fixed(x, zeros(64), threads=41)
        assert caught.value.kind == "uninitialised_read" and caught.value.element == 40

    def test_two_kernels_fill_one_tensor(self, lib):
        from softmetal import shader

        y = self.fresh(64)
        lib.fill_fixed(y[:32], threads=32)
        lib.fill_fixed(y[32:], threads=32)
        shader.check_written(y)
        assert not y.cpu().any()

    def test_a_recycled_block_is_fresh_again(self, lib):
        from softmetal import shader

        for _ in range(3):
            y = self.fresh(1024)
            lib.fill_broken(y, threads=1024)
            with pytest.raises(shader.KernelFault):
                shader.check_written(y)
            del y
