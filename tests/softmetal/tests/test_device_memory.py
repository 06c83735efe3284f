"""The four memory numbers, their peaks, the limit and its message."""
import gc
import threading

import pytest
import softmetal
import torch

KIB, MIB, GIB = 1 << 10, 1 << 20, 1 << 30
BASE = 384 * KIB  # what Metal holds before the first tensor


@pytest.fixture(autouse=True)
def device():
    gc.collect()
    softmetal.activate()
    return torch.device("mps")


def grown(before):
    """How far each number has grown since `before`."""
    now = softmetal.counters.memory()
    return {name: now[name] - before[name] for name in now}


def empty(size):
    return torch.empty(size, dtype=torch.uint8, device="mps")


@pytest.mark.parametrize(("size", "current", "reserved"), [
    (1, 256, 8 * MIB), (257, 512, 8 * MIB), (17 * KIB, 32 * KIB, 8 * MIB), (MIB, MIB, 8 * MIB),
    (MIB + 1, MIB + 16 * KIB, 32 * MIB), (9 * MIB, 9 * MIB, 32 * MIB), (10 * MIB, 10 * MIB, GIB),
    (511 * MIB, 511 * MIB, GIB), (513 * MIB - 1, 513 * MIB, 514 * MIB)])
def test_sizes_are_rounded_and_share_heaps(size, current, reserved):
    before = softmetal.counters.memory()
    if before["current"] == 0:
        assert before["reserved"] == 0
    torch.mps.empty_cache()
    before = softmetal.counters.memory()
    kept = [empty(size)]
    numbers = grown(before)
    assert numbers["current"] == current
    # A heap that other tests' tensors hold may have had room.
    assert numbers["reserved"] in ((reserved,) if before["current"] == 0 else (0, reserved))
    assert numbers["outside"] == 0 and numbers["driver"] == numbers["reserved"]
    kept.append(empty(size))
    assert grown(before)["current"] == 2 * current


def test_an_empty_tensor_takes_nothing():
    before = softmetal.counters.memory()
    tensor = empty(0)
    assert tensor.numel() == 0 and grown(before)["current"] == 0


def test_the_pool_keeps_freed_memory_until_empty_cache():
    torch.mps.empty_cache()
    before = softmetal.counters.memory()
    tensor = empty(600 * MIB)
    del tensor
    assert grown(before) == {"current": 0, "reserved": 600 * MIB, "driver": 600 * MIB, "outside": 0}
    again = empty(590 * MIB)  # the freed buffer serves a slightly smaller tensor
    assert grown(before)["reserved"] == 600 * MIB
    assert grown(before)["current"] == 600 * MIB
    del again
    torch.mps.empty_cache()
    assert grown(before)["reserved"] == 0


def test_a_much_larger_free_buffer_is_not_used():
    torch.mps.empty_cache()
    before = softmetal.counters.memory()
    tensor = empty(600 * MIB)
    del tensor
    small = empty(520 * MIB)
    assert grown(before)["reserved"] == (600 + 520) * MIB
    del small
    torch.mps.empty_cache()


def test_torch_shows_the_same_numbers():
    kept = empty(3 * MIB)
    numbers = softmetal.counters.memory()
    assert torch.mps.current_allocated_memory() == numbers["current"] >= kept.numel()
    assert torch.mps.driver_allocated_memory() == numbers["driver"] == numbers["reserved"] + numbers["outside"]
    assert numbers["outside"] == BASE
    if torch.__version__ >= (2, 13):
        assert torch.accelerator.memory_allocated() == numbers["current"]
        assert torch.accelerator.memory_reserved() == numbers["reserved"]


def test_peaks_are_exact_and_reset():
    torch.mps.empty_cache()
    softmetal.counters.reset_memory_peaks()
    before = softmetal.counters.memory()
    assert softmetal.counters.memory_peaks() == before
    tensor = empty(600 * MIB)
    del tensor
    torch.mps.empty_cache()
    peaks = softmetal.counters.memory_peaks()
    assert peaks["current"] - before["current"] == peaks["reserved"] - before["reserved"] == 600 * MIB
    assert peaks["driver"] - before["driver"] == 600 * MIB and peaks["outside"] == BASE
    assert softmetal.counters.memory() == before
    if torch.__version__ >= (2, 13):
        assert torch.accelerator.max_memory_allocated() == peaks["current"]
        assert torch.accelerator.max_memory_reserved() == peaks["reserved"]
        torch.accelerator.reset_peak_memory_stats()
        assert torch.accelerator.max_memory_allocated() == before["current"]
        statistics = torch.accelerator.memory_stats()
        assert statistics["allocated_bytes.large_pool.allocated"] >= 600 * MIB
        torch.accelerator.reset_accumulated_memory_stats()
        assert torch.accelerator.memory_stats()["allocated_bytes.large_pool.allocated"] == 0
        torch.accelerator.empty_cache()
    softmetal.counters.reset_memory_peaks()
    assert softmetal.counters.memory_peaks() == before


@pytest.mark.parametrize(("faults", "pool"), [
    (None, "private" if torch.__version__ < (2, 12) else "shared"),
    ("2.9", "private"), ("2.12", "shared"), ("2.13", "shared"), ("2.14", "shared"), ("2.15", "shared")])
def test_out_of_memory_says_what_mps_says(faults, pool):
    softmetal.activate(faults)
    torch.mps.empty_cache()
    held = empty(600 * MIB)
    torch.mps.set_per_process_memory_fraction(1.25 * GIB / torch.mps.recommended_max_memory())
    with pytest.raises(RuntimeError) as caught:
        empty(700 * MIB)
    message = str(caught.value)
    assert message.startswith("MPS backend out of memory (MPS allocated: ")
    assert "other allocations: 384.00 KiB, max allowed: 1.25 GiB). Tried to allocate 700.00 MiB on " in message
    assert message.splitlines()[0].endswith(
        f" on {pool} pool. Use PYTORCH_MPS_HIGH_WATERMARK_RATIO=0.0 to disable upper limit for memory allocations (may "
        "cause system failure).")
    assert not isinstance(caught.value, torch.OutOfMemoryError)
    del held
    empty(700 * MIB)  # the pool's free memory is given up first
    torch.mps.set_per_process_memory_fraction(0.0)
    empty(1100 * MIB)
    torch.mps.empty_cache()


def test_the_limit_follows_the_environment(monkeypatch):
    monkeypatch.setenv("PYTORCH_MPS_HIGH_WATERMARK_RATIO", "0.0001")
    softmetal.activate(chip="Apple M1")
    torch.mps.empty_cache()
    with pytest.raises(RuntimeError, match="max allowed: 1.09 MiB"):
        empty(2 * MIB)


def test_a_buffer_has_a_largest_size():
    with pytest.raises(RuntimeError, match=r"Invalid buffer size: 72\.00 GiB"):
        empty(72 * GIB)


@pytest.mark.parametrize("fraction", [-0.1, 2.1])
def test_wrong_fractions_raise(fraction):
    with pytest.raises(ValueError, match="Invalid fraction value"):
        torch.mps.set_per_process_memory_fraction(fraction)


def test_threads_may_allocate_at_once():
    before = softmetal.counters.memory()["current"]

    def work(number):
        for step in range(200):
            tensor = torch.full((1 + (number * 977 + step * 131) % 5000,), number, dtype=torch.int64, device="mps")
            results.append(bool((tensor == number).all()))

    results = []
    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(results) == 800 and all(results)
    gc.collect()
    assert softmetal.counters.memory()["current"] == before
