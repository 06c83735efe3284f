"""Modes, their three layers, states and counters."""

import asyncio
import logging
import threading

import pytest
import torch
import torch.nn.functional as F


@pytest.fixture
def pad(mps, took):
    """pad(): whether the test's kernel took a call just now."""
    x = torch.zeros(3, device=mps)
    return lambda: took(F.pad(x, (1, 1)))


@pytest.fixture
def kernel(make_kernel):
    return make_kernel(name="pad")


def in_thread(function):
    results = []
    thread = threading.Thread(target=lambda: results.append(function()))
    thread.start()
    thread.join()
    return results[0]


class TestUsing:
    def test_nests_and_undoes_exactly(self, install, kernel, pad):
        using = install(kernel).switches.using
        assert pad()
        with using({"pad": "off"}):
            assert not pad()
            with using({"pad": "on"}):
                assert pad()
                with using({}):
                    assert pad()
            assert not pad()
            with pytest.raises(KeyError), using({"pad": "auto"}):
                assert pad()
                raise KeyError
            assert not pad()
        assert pad()

    def test_is_for_this_thread_only(self, install, kernel, pad):
        with install(kernel).switches.using({"pad": "off"}):
            assert in_thread(pad)
            assert not pad()

    def test_is_for_this_task_only(self, install, kernel, pad):
        using = install(kernel).switches.using

        async def inside(mode, expected, turns):
            with using({"pad": mode}):
                for _ in range(turns):
                    await asyncio.sleep(0)
                    assert pad() is expected

        async def both():
            await asyncio.gather(inside("off", False, 5), inside("on", True, 3))
            assert pad()

        asyncio.run(both())

    @pytest.mark.parametrize(
        ("modes", "named"),
        [
            ({"pda": "off"}, "'pda'"),
            ({"pad": "of"}, "'of'"),
            ({"pad": True}, "True"),
            ({"pad": "off", "x": "on"}, "'x'"),
        ],
    )
    def test_what_does_not_exist_is_named(self, install, kernel, pad, modes, named):
        installation = install(kernel)
        for layer in (installation.switches.set_workflow, lambda m: installation.set_mode(**m)):
            with pytest.raises(ValueError, match=named):
                layer(modes)
        with pytest.raises(ValueError, match=named), installation.switches.using(modes):
            pass
        assert pad(), "a refused call has changed something"

    def test_on_needs_a_registration_and_says_how(self, install, make_kernel, pad):
        installation = install(make_kernel(name="pad", need=False))
        with pytest.raises(RuntimeError, match=r"set_mode\(pad='on'\)"), installation.switches.using({"pad": "on"}):
            pass
        with installation.switches.using({"pad": "off"}), installation.switches.using({"pad": "auto"}):
            assert not pad()

    def test_what_cannot_be_switched_on_says_why_and_gives_no_advice(self, make_kernel, core):
        switch = core.switches.Switch(make_kernel(name="pad"))
        switch.unavailable = "This is Linux; these kernels are for Apple silicon."
        assert switch.why_not_on() == (
            "using(pad='on'): pad is unavailable here and cannot be switched on: "
            "This is Linux; these kernels are for Apple silicon."
        )
        switch.unavailable, switch.failure = None, "3 of 8 bytes differ"
        assert "failed here and cannot be switched on: 3 of 8 bytes differ." in switch.why_not_on()

    def test_the_public_face(self, core):
        """`using(name="mode")` and its errors, without any kernel registered."""
        with pytest.raises(ValueError, match="'nothing'"), core.face.using(nothing="off"):
            pass
        with pytest.raises(ValueError, match="'nothing'"):
            core.face.set_mode(nothing="off")


class TestLayers:
    def test_the_nearest_wins(self, install, kernel, pad):
        installation = install(kernel)
        for process in ("auto", "on", "off"):
            installation.set_mode(pad=process)
            with installation.registered("pad"):
                for workflow in (None, "auto", "on", "off"):
                    installation.set_workflow({"pad": workflow} if workflow else None)
                    assert pad() is ((workflow or process) != "off")
                    for here in ("auto", "on", "off"):
                        with installation.switches.using({"pad": here}):
                            assert pad() is (here != "off")
                            assert installation.switches["pad"].effective == here
            installation.set_workflow(None)

    def test_the_workflow_layer_is_for_every_thread(self, install, kernel, pad):
        installation = install(kernel)
        installation.set_workflow({"pad": "off"})
        assert not pad() and not in_thread(pad)
        installation.set_workflow({})
        assert pad() and in_thread(pad)

    def test_the_process_mode_registers_and_unregisters(self, install, make_kernel, pad):
        installation = install(make_kernel(name="pad", need=False), make_kernel("flip"))
        assert list(installation.patcher.overrides) == ["flip"] and not pad()
        installation.set_mode(pad="on")
        assert pad() and installation.switches["pad"].state == ("patched", "switched on")
        installation.set_mode("off")
        assert installation.patcher.overrides == {} and installation.switches["pad"].state[0] == "off"
        installation.set_mode("auto", pad="on")
        assert set(installation.patcher.overrides) == {"constant_pad_nd", "flip"}
        installation.set_mode("auto")
        assert list(installation.patcher.overrides) == ["flip"]
        assert installation.switches["pad"].state == ("stock", "stock is good here")

    def test_a_prompt_registers_more_and_gives_it_back(self, install, make_kernel, pad):
        installation = install(make_kernel(name="pad", need=False))
        with installation.registered("pad"):
            assert not pad(), "registered, but auto still says no"
            installation.set_workflow({"pad": "on"})
            assert pad()
            with installation.registered("pad"):
                assert pad()
            assert pad(), "an inner prompt took the registration of the outer one away"
            installation.set_workflow(None)
            with installation.switches.using({"pad": "on"}):
                assert pad()
        assert installation.patcher.overrides == {}
        with pytest.raises(ValueError, match="'nope'"), installation.registered("nope"):
            pass

    def test_a_workflow_cannot_switch_on_what_is_not_registered(self, install, make_kernel, pad):
        installation = install(make_kernel(name="pad", need=False))
        installation.set_workflow({"pad": "on"})
        assert not pad()
        state, reason = installation.switches["pad"].state
        assert state == "stock" and "not registered" in reason

    def test_an_op_that_nobody_needs_is_not_registered(self, install, make_kernel):
        assert install(make_kernel(need=False)).patcher.overrides == {}


class TestVariable:
    """METAL_KERNELS, read before installing."""

    @pytest.mark.parametrize(
        ("text", "modes"),
        [
            ("", {}),
            ("off", {"pad": "off", "fp8": "off"}),
            ("pad=off,fp8=on", {"pad": "off", "fp8": "on"}),
            (" Off , PAD = On ", {"pad": "on", "fp8": "off"}),
            ("off,", {"pad": "off", "fp8": "off"}),
        ],
    )
    def test_understood(self, core, text, modes):
        assert core.switches.parse_modes(text, ["pad", "fp8"]) == (modes, [])

    @pytest.mark.parametrize("text", ["no", "pad", "pad=", "=off", "pda=off", "pad=off=on", "pad:off", "💥", "pad=2"])
    def test_malformed_is_named_left_out_and_never_raised(self, core, text):
        modes, complaints = core.switches.parse_modes(f"fp8=on,{text}", ["pad", "fp8"])
        assert modes == {"fp8": "on"}
        assert len(complaints) == 1 and repr(text) in complaints[0]

    def test_off_is_the_way_out(self, install, kernel, make_kernel, pad, monkeypatch):
        monkeypatch.setenv("METAL_KERNELS", "off")
        installation = install(kernel, make_kernel("flip"))
        assert installation.patcher.overrides == {} and not pad()
        installation.set_mode(pad="auto")
        assert pad(), "an explicit call overrules the variable"

    def test_one_warning_and_the_rest_holds(self, install, kernel, make_kernel, pad, monkeypatch, caplog):
        monkeypatch.setenv("METAL_KERNELS", "pad=off,flip=maybe,what")
        with caplog.at_level(logging.WARNING, "metal_kernels"):
            installation = install(kernel, make_kernel("flip"))
        (record,) = caplog.records
        assert "'flip=maybe'" in record.getMessage() and "'what'" in record.getMessage()
        assert list(installation.patcher.overrides) == ["flip"] and not pad()


def test_one_line_says_what_is_patched_and_how_to_switch_it_off(install, kernel, make_kernel, caplog):
    with caplog.at_level(logging.INFO, "metal_kernels"):
        install(kernel, make_kernel("flip", need=False))
    (record,) = caplog.records
    assert record.getMessage() == (
        "Metal Kernels: patched pad. To switch off: METAL_KERNELS=off, or METAL_KERNELS=pad=off."
    )


class TestCounters:
    def test_by_dtype_shape_and_side(self, install, make_kernel, mps):
        installation = install(make_kernel(name="pad", supports=lambda x, *a: x.dim() == 1))
        for dtype in (torch.float32, torch.float16, torch.float16):
            F.pad(torch.zeros(3, dtype=dtype, device=mps), (1, 1))
        F.pad(torch.zeros(2, 2, device=mps), (1, 1))
        counts = installation.patcher.counters["constant_pad_nd"].as_dict()
        assert counts["taken_by_dtype"] == {"float32": 1, "float16": 2}
        assert counts["passed_by_dtype"] == {"float32": 1}
        assert counts["shapes"] == [[2, 2], [3]] and not counts["shapes_full"]
        installation.reset_counters()
        counts = installation.patcher.counters["constant_pad_nd"].as_dict()
        assert counts["taken"] == counts["passed"] == counts["distinct_shapes"] == 0

    def test_shapes_are_bounded(self, core):
        counters = core.switches.Counters()
        for n in range(10 * core.switches.SHAPES_KEPT):
            counters.note(None, torch.float32, (n,))
        counts = counters.as_dict()
        assert counts["distinct_shapes"] == core.switches.SHAPES_KEPT and counts["shapes_full"]
        assert counts["passed"] == 10 * core.switches.SHAPES_KEPT

    def test_exact_under_threads(self, core):
        counters = core.switches.Counters()

        def work():
            for _ in range(5000):
                counters.note("pad", torch.float32, (1,))
                counters.note(None, torch.float32, (1,))

        threads = [threading.Thread(target=work) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        counts = counters.as_dict()
        assert counts["taken"] == counts["passed"] == 20000
