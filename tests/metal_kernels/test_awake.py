"""Who is asked at a call: worked out when a switch changes, right at every call, and counted."""

import threading
import time

import torch
import torch.nn.functional as F


def test_who_is_asked_follows_every_change_of_a_switch(install, make_kernel, mps, took):
    """What is worked out when a switch changes: in the process, the workflow and inside `using`, in any order."""
    installation = install(make_kernel(name="pad"))
    switch = installation.switches["pad"]

    def ours():
        return took(F.pad(torch.zeros(3, device=mps), (1, 1)))

    assert ours()
    with installation.switches.using({}):  # names nobody
        assert ours()
        installation.set_workflow({"pad": "off"})
        assert not ours()
        with installation.switches.using({"pad": "on"}):
            assert ours()
            installation.set_workflow()
            assert ours()
            switch.fail("it did")
            assert not ours()
        assert not ours()
    assert not ours()
    switch.failure = None
    switch.refresh()
    assert ours()
    with installation.registered("pad"):
        installation.set_mode(pad="off")
        assert not ours()
        with installation.switches.using({"pad": "on"}):
            assert ours()
        installation.set_workflow({"pad": "on"})
        assert ours()
        installation.set_workflow({"pad": "auto"})
        assert ours()
        installation.set_workflow()
        assert not ours()
        installation.set_mode(pad="auto")
        assert ours()


def test_threads_that_fail_two_kernels_at_once_leave_none_awake(install, make_kernel, mps):
    for _ in range(50):
        installation = install(*(make_kernel(name=f"k{i}") for i in range(4)))
        barrier = threading.Barrier(4)

        def fail(switch, barrier=barrier):
            barrier.wait()
            switch.fail("at once")

        threads = [threading.Thread(target=fail, args=(switch,)) for switch in installation.switches]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert installation.patcher.overrides["constant_pad_nd"].awake == ()
        installation.uninstall()
        assert all(switch.listeners == [] for switch in installation.switches)


def test_other_threads_go_on_while_stock_copies(install, make_kernel, core, mps):
    """copy_ is what waits for the GPU. Its stock kernel, here the CPU's, is called without Python's lock."""
    x, y = torch.zeros(3000, 3000), torch.zeros(3000, 3000, dtype=torch.float64).t()
    installation = install(make_kernel("copy_", guard=lambda a, b, n=False: a.dtype == torch.int8), key="CPU")
    assert "copy_" in installation.patcher.overrides
    started, moments = threading.Event(), []

    def work():
        started.set()
        for _ in range(3):
            y.copy_(x)
        moments.append(time.perf_counter())

    thread = threading.Thread(target=work)
    thread.start()
    started.wait()
    begin, lived = time.perf_counter(), 0
    while not moments:
        time.sleep(0.001)
        lived += 1
    thread.join()
    took = moments[0] - begin
    assert lived > 30 * took, f"{lived} moments in {took:.2f} s of copying"


def test_an_idle_op_is_counted_all_the_same(install, make_kernel, core, mps):
    """Which dtype and shape went to stock; and a meter's watcher is called. Not of an op that has only guards."""
    pad = make_kernel(name="pad")
    copy = make_kernel("copy_", guard=lambda a, b, n=False: a.dtype == torch.int8, run=lambda a, b, n=False: a)
    installation = install(pad, copy)
    x, called = torch.zeros(3, dtype=torch.int8, device=mps), []
    with installation.registered("pad", "copy_"), core.switches.watch(lambda: called.append(1)):
        installation.set_mode("off")
        F.pad(x, (1, 1))
        x.copy_(x)
        with installation.switches.using({"pad": "off"}):
            F.pad(x, (1, 1))
    counts = installation.patcher.counters["constant_pad_nd"].as_dict()
    assert counts["passed_by_dtype"] == {"int8": 2} and counts["shapes"] == [[3]] and len(called) == 2
    assert installation.passed() == {"pad": 2, "copy_": 0}
