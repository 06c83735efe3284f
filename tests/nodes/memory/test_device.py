"""On the mps device: the numbers are the allocator's own, on every torch; real pads make real memory grow."""
import gc
import sys
import threading

import pytest
import torch
import torch.nn.functional as F
from executor import node, run
from memory_toys import MIB

pytestmark = pytest.mark.skipif(sys.platform == "darwin", reason="asks the software device what it counted")


@pytest.fixture
def device(loaded):
    """The software device with the faults of torch 2.13 and the kernels installed; nothing pooled."""
    import softmetal

    pack = loaded[0]
    pack.metal_kernels.uninstall()
    softmetal.activate(faults="2.13")
    pack.metal_kernels.install()
    gc.collect()
    torch.mps.empty_cache()
    softmetal.counters.reset()
    yield softmetal
    pack.metal_kernels.uninstall()
    softmetal.activate()


def numbers(device):
    return device.counters.memory()


def test_a_reading_is_what_the_allocator_says(memory, device):
    keep = torch.zeros(3 * MIB, device="mps")
    reading = memory.source.MpsSource().read()._asdict()
    footprint = reading.pop("footprint")
    assert reading == numbers(device) and reading["current"] >= keep.nbytes
    assert footprint > 50 * MIB


def test_counted_peaks_are_exact_and_start_anew_each_time(memory, device):
    source = memory.source.MpsSource()
    assert source.counts_peaks
    before = numbers(device)["current"]
    torch.zeros(6 * MIB, device="mps")  # gone at once
    exact = device.counters.memory_peaks()
    assert source.take_peaks() == {"current": exact["current"], "reserved": exact["reserved"]}
    assert exact["current"] - before == 24 * MIB and numbers(device)["current"] == before
    assert source.take_peaks() == {"current": before, "reserved": numbers(device)["reserved"]}


@pytest.mark.parametrize("faults", ["2.9", "2.12"])
def test_older_torch_has_no_pool_and_no_peaks(memory, device, faults):
    device.activate(faults=faults)
    source = memory.source.MpsSource()
    reading = source.read()
    assert (reading.reserved, reading.outside) == (None, None) and reading.driver > 0
    assert not source.counts_peaks and source.take_peaks() == {}


def test_statistics_whose_allocated_is_another_number_are_no_peaks_of_current(memory, device, monkeypatch):
    right = memory.source._direct
    monkeypatch.setattr(memory.source, "_direct", lambda: {**right(), "allocated": right()["allocated"] + 512})
    source = memory.source.MpsSource()
    assert source.has_reserved and not source.counts_peaks


def test_without_torchs_private_call_the_public_one_is_asked(memory, device, monkeypatch):
    expected = memory.source.MpsSource().read()

    def gone():
        raise AttributeError

    monkeypatch.setattr(memory.source, "_direct", gone)
    assert memory.source.MpsSource().read()[:4] == expected[:4]


@pytest.mark.parametrize("driver, reserved", [
    ([900, 900, 900], [60, 860, 860]),  # the driver's number is of after the growth, the pool's of before it
    ([100, 900, 900, 900], [60, 860, 860, 860]),
    ([900, 910, 920, 930, 940], [60, 870, 880, 890, 900]),  # it never stands still: the least difference seen
])
def test_a_pool_that_grows_in_the_middle_of_a_reading_is_not_outside(memory, device, monkeypatch, driver, reserved):
    source, drivers, pools = memory.source.MpsSource(), iter(driver), iter(reserved)
    monkeypatch.setattr(torch.mps, "driver_allocated_memory", lambda: next(drivers))
    monkeypatch.setattr(source, "_statistics", lambda: {"reserved": next(pools)})
    assert source.read().outside == 40


def test_the_recommended_maximum(memory, device, monkeypatch):
    source = memory.source.MpsSource()
    assert source.recommended_maximum() == torch.mps.recommended_max_memory()
    monkeypatch.delattr(torch.mps, "recommended_max_memory")
    assert source.recommended_maximum() is None


def test_no_mps_is_an_obstacle_in_one_sentence(memory, loaded, monkeypatch):
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: False)
    assert memory.source.obstacle().endswith(".") and "MPS" in memory.source.obstacle()


def test_the_footprint_is_named(memory):
    kind, read = memory.footprint.reader()
    assert kind == "resident set size" and 20 * MIB < read() < 2**40


def test_macs_phys_footprint(memory, monkeypatch):
    """struct rusage_info_v0: 16 bytes of uuid, then 64-bit words, the eighth of which it is."""
    class Lib:
        def proc_pid_rusage(self, pid, flavor, buffer):
            assert flavor == 0
            usage = buffer._obj
            assert usage.__class__.phys_footprint.offset == 16 + 7 * 8
            usage.phys_footprint = 77 * MIB
            return 0

    monkeypatch.setattr(memory.footprint, "_library", Lib)
    monkeypatch.setattr(memory.footprint.sys, "platform", "darwin")
    kind, read = memory.footprint.reader()
    assert kind.startswith("phys_footprint") and read() == 77 * MIB


def pads(height, count, dtype=torch.float32):
    x = torch.zeros(1, 1, 2, height, 260, device="mps", dtype=dtype)
    for depth in range(count):
        F.pad(x, (0, 0, 0, 0, depth + 1, 0))


@pytest.fixture
def graph(memory, device, loaded, world):
    """run(prompt) on the real source and counters; node classes `Stock` and `Ours` pad, each in shapes of its own."""
    pack = loaded[0]
    meter = memory.meter.Meter(deliver=world.delivered.append, interval=3600)
    world.hooks._listeners[:] = [meter]
    found = {}

    def stock(executor, node_id, item):
        with pack.metal_kernels.using(pad="off"):
            pads(300, 6)

    def seen(executor, node_id, item):
        found["threads"] = [thread.name for thread in threading.enumerate() if thread.name == "metal memory"]
        found["watcher"] = sys.modules[f"{pack.__name__}.metal_kernels.switches"]._watcher

    executor = world.comfyui.execution.PromptExecutor({
        "Stock": stock, "Ours": lambda *_: pads(301, 6), "See": seen, "Allocate": lambda *_: None,
        "MetalMemoryReport": lambda *_: None})

    def go(**classes):
        run(executor, {node_id: node(name) for node_id, name in classes.items()})
        return world.delivered[-1] if world.delivered else None

    go.found, go.world, go.executor = found, world, executor
    return go


def test_growth_belongs_to_the_node_whose_pads_stock_took(memory, device, graph):
    session = graph(a="Ours", b="Stock", c="Ours", M="MetalMemoryReport")
    a, b, c = (session.nodes[node_id] for node_id in "abc")
    assert b.growth["outside"] > MIB and a.growth["outside"] == c.growth["outside"] == 0
    assert b.kernels == {"pad": [0, 6]} and a.kernels == {"pad": [6, 0]}
    assert session.peaks["outside"].value == device.counters.memory_peaks()["outside"]
    data = memory.report.collect(session)
    assert (data["growth"]["node"], data["growth"]["kernel"]) == ("b", "pad")
    assert data["environment"]["device"] == "software Metal" and "software Metal" in memory.report.as_text(data)


def test_peaks_agree_with_the_devices_own(device, graph):
    session = graph(a="Stock", b="Ours", M="MetalMemoryReport")
    counted = device.counters.memory_peaks()
    # The device's own peaks go on from before the prompt; nothing was larger then.
    assert session.peaks["reserved"].value == counted["reserved"] and session.peaks["driver"].value <= counted["driver"]


def test_pads_are_counted_though_the_kernel_is_switched_off(device, graph, loaded):
    kernels = loaded[0].metal_kernels
    kernels.set_mode("off")
    try:
        assert kernels.registered_now() == ()
        session = graph(a="Ours", M="MetalMemoryReport")
        assert session.nodes["a"].kernels == {"pad": [0, 6]} and kernels.registered_now() == ()
    finally:
        kernels.set_mode("auto")


@pytest.mark.parametrize("faults, leaks", [("2.13", True), ("2.14", True), ("2.15", False)])
def test_on_a_torch_whose_pad_is_good_no_kernel_is_named(memory, device, loaded, faults, leaks):
    loaded[0].metal_kernels.uninstall()
    device.activate(faults=faults)
    assert ("pad" in memory.calls.leaking()) is leaks


def test_nothing_of_it_exists_without_a_report_node(device, graph):
    graph(a="Ours", s="See")
    assert graph.found == {"threads": [], "watcher": None} and graph.world.delivered == []
    graph(a="Ours", s="See", M="MetalMemoryReport")
    assert graph.found["threads"] == ["metal memory"] and graph.found["watcher"] is not None


def test_the_watcher_hears_of_every_counted_call_and_of_no_self_check(device, loaded):
    kernels, heard = loaded[0].metal_kernels, []
    with kernels.watch(lambda: heard.append((kernels.taken().get("pad", 0), kernels.passed()["pad"]))):
        before = kernels.taken().get("pad", 0), kernels.passed()["pad"]
        pads(302, 2, torch.int16)  # a dtype whose self-check has not run in this process
        with kernels.using(pad="off"):
            pads(302, 1, torch.int16)
    assert [(a - before[0], b - before[1]) for a, b in heard] == [(1, 0), (2, 0), (2, 1)]
    pads(302, 1)
    assert len(heard) == 3


def test_a_self_check_is_told_to_meters(memory, device, loaded, graph):
    """Its memory is more than the node's own here: it must not be the node's peak."""
    kernels = loaded[0].metal_kernels
    patcher = sys.modules[f"{kernels.__name__}.selfcheck"]
    paused = []
    with kernels.watch(lambda: None, paused.append), patcher.quiet():
        assert paused == [True]
    assert paused == [True, False]

    def checks(executor, node_id, item):
        with patcher.quiet():
            torch.zeros(20 * MIB, device="mps")
        torch.zeros(MIB, device="mps")

    graph.executor.functions["Checks"] = checks
    before = numbers(device)["current"]
    session = graph(a="Checks", M="MetalMemoryReport")
    assert session.nodes["a"].peaks["current"].value == before + 4 * MIB
