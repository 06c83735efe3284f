"""activate, deactivate and profiles: what torch and platform show of the machine."""

import platform
import subprocess
import sys
import threading

import pytest
import softmetal
import torch
import torch.nn.functional as F


@pytest.fixture(autouse=True)
def inactive():
    softmetal.deactivate()
    yield
    softmetal.deactivate()


def run(code: str) -> str:
    """What a fresh process prints, with tests/ on its path."""
    prelude = f"import sys; sys.path[:0] = {[entry for entry in sys.path if entry]!r}\n"
    done = subprocess.run([sys.executable, "-c", prelude + code], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_importing_changes_nothing():
    assert (
        run("""
import platform, torch
def shown():
    return (torch.__version__, torch._C._has_mps, torch.backends.mps.is_built(), torch.backends.mps.is_available(),
            platform.mac_ver(), torch.accelerator.is_available(), sorted(vars(torch._C)), sorted(vars(torch.mps)))
before = shown()
loaded = set(sys.modules)
import softmetal
assert shown() == before
assert not torch._C._dispatch_has_kernel_for_dispatch_key("aten::add.Tensor", "MPS")
print(sorted(name for name in set(sys.modules) - loaded if "extension" in name or "ctypes" in name))
""")
        == "[]"
    )


def test_a_mac_appears_and_goes():
    mac_ver, version, before = platform.mac_ver, torch.__version__, torch.accelerator.current_accelerator()
    assert not torch.backends.mps.is_available()
    softmetal.activate()
    assert torch.backends.mps.is_available() and torch.backends.mps.is_built()
    assert torch.mps.device_count() == 1
    assert torch.accelerator.current_accelerator() == torch.device("mps")
    assert torch.accelerator.is_available() and torch.accelerator.device_count() == 1
    assert platform.mac_ver() == ("15.5", ("", "", ""), "arm64")
    assert torch.__version__ == version
    softmetal.deactivate()
    assert not torch.backends.mps.is_available() and not torch.backends.mps.is_built()
    assert torch.accelerator.current_accelerator() == before  # None, or cuda in a CUDA build
    assert platform.mac_ver is mac_ver and torch.__version__ == version
    assert not hasattr(torch._C, "_mps_compileShader")
    softmetal.deactivate()  # once more does nothing


@pytest.mark.parametrize(
    ("profile", "version"),
    [("2.9", "2.9.1"), ("2.12", "2.12.0"), ("2.13", "2.13.0"), ("2.14", "2.14.0"), ("2.15", "2.15.0")],
)
def test_a_profile_presents_its_version(profile, version):
    before = torch.__version__
    with softmetal.profile(profile):
        assert torch.__version__ == version
        assert torch.version.__version__ == version
        assert (torch.__version__ < (2, 13)) == (profile in ("2.9", "2.12"))
    assert torch.__version__ == before and torch.version.__version__ == str(before)


def test_old_profiles_hide_what_they_lacked():
    had = hasattr(F, "scaled_mm")
    with softmetal.profile("2.9"):
        assert not hasattr(F, "scaled_mm")
        assert not softmetal.shader.settings.error_buffer
        torch.ones(4, device="mps")
        if hasattr(torch.accelerator, "memory_allocated"):
            with pytest.raises(RuntimeError, match="Allocator for mps is not a DeviceAllocator"):
                torch.accelerator.memory_allocated()
    assert hasattr(F, "scaled_mm") == had
    with softmetal.profile("2.12"):
        assert softmetal.shader.settings.error_buffer
        with pytest.raises(RuntimeError, match="Allocator for mps is not a DeviceAllocator"):
            torch.accelerator.max_memory_allocated()
    with softmetal.profile("2.13"):
        assert hasattr(F, "scaled_mm") == had
        assert torch.accelerator.max_memory_allocated() >= 0


def test_profiles_nest():
    softmetal.activate("2.13")
    with softmetal.profile("2.9", chip="Apple M1", macos="26.0") as inner:
        assert softmetal.active_profile() == inner
        assert (inner.faults, inner.chip, inner.macos) == ("2.9", "Apple M1", "26.0")
        assert platform.mac_ver()[0] == "26.0"
    assert softmetal.active_profile().faults == "2.13"
    assert torch.__version__ == "2.13.0" and platform.mac_ver()[0] == "15.5"


@pytest.mark.parametrize(
    ("chip", "gib", "cores"),
    [("Apple M2 Max", 32 * 2 / 3, 38), ("Apple M1", 16 * 2 / 3, 8), ("Apple M3 Ultra", 512 * 3 / 4, 80)],
)
def test_the_chip_answers(chip, gib, cores):
    softmetal.activate(chip=chip)
    assert torch.mps.recommended_max_memory() == int(gib * 2**30)
    if hasattr(torch.backends.mps, "get_name"):
        assert torch.backends.mps.get_name() == chip
        assert torch.backends.mps.get_core_count() == cores


def test_macos_answers():
    softmetal.activate(macos="15.5")
    newer = torch.backends.mps.is_macos_or_newer
    assert newer(15, 5) and newer(15, 0) and newer(14, 9) and not newer(15, 6) and not newer(26, 0)
    assert torch.backends.mps.is_macos13_or_newer()
    softmetal.activate(macos="26.1")
    assert newer(26, 1) and not newer(26, 2)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"faults": "2.7"}, "no profile '2.7'"),
        ({"faults": {"no-such-fault"}}, "no fault 'no-such-fault'"),
        ({"chip": "Intel"}, "unknown chip 'Intel'"),
    ],
)
def test_wrong_names_are_refused(arguments, message):
    with pytest.raises(ValueError, match=message):
        softmetal.activate(**arguments)
    assert softmetal.active_profile() is None


def test_activating_again_starts_as_a_new_process():
    softmetal.activate("2.13")
    F.pad(torch.ones(2, 3, device="mps"), (1, 1))
    assert softmetal.counters.calls("aten::constant_pad_nd") == 1
    assert softmetal.counters.memory()["outside"] > 384 * 1024
    torch.mps.set_per_process_memory_fraction(0.5)
    softmetal.activate("2.13")
    assert softmetal.counters.calls("aten::constant_pad_nd") == 0
    assert softmetal.counters.memory()["outside"] == 384 * 1024


def test_backward_works_though_one_ran_before_the_device_was_there():
    assert (
        run("""
import torch, softmetal
x = torch.ones(3, requires_grad=True)
(x * 2).sum().backward()
softmetal.activate()
y = torch.ones(3, device="mps", requires_grad=True)
(y * 3).sum().backward()
(x * 2).sum().backward()
print(x.grad.tolist(), y.grad.tolist())
""")
        == "[4.0, 4.0, 4.0] [3.0, 3.0, 3.0]"
    )


def test_events_and_streams():
    softmetal.activate()
    first, second = torch.mps.Event(enable_timing=True), torch.mps.Event(enable_timing=True)
    first.record()
    torch.ones(1000, device="mps").sum()
    second.record()
    second.wait()
    second.synchronize()
    assert second.query() and 0 <= first.elapsed_time(second) < 1e4
    with pytest.raises(RuntimeError, match="enable_timing=True"):
        plain = torch.mps.Event()
        plain.record()
        plain.elapsed_time(second)
    generic = torch.Event("mps", enable_timing=True)
    generic.record()
    generic.synchronize()
    assert generic.query()


@pytest.mark.skipif(not hasattr(torch.mps, "Stream"), reason="torch before 2.15 has no torch.mps.Stream")
def test_streams_are_numbers_and_one_is_current():
    softmetal.activate()
    assert torch.mps.current_stream() == torch.mps.default_stream()
    side = torch.mps.Stream()
    assert side != torch.mps.default_stream() and side.device == torch.device("mps", 0)
    with torch.mps.stream(side):
        assert torch.mps.current_stream() == side
        x = torch.ones(3, device="mps")
        with pytest.raises(NotImplementedError, match="Non-default streams"):
            torch.mps.Event().record()
    assert torch.mps.current_stream() == torch.mps.default_stream()
    x.record_stream(side)
    side.synchronize()
    softmetal.activate("2.14")
    assert not hasattr(torch.mps, "Stream")
    torch.mps.Event().record()
    with pytest.raises(NotImplementedError, match="record_stream"):
        x.record_stream(side)


@pytest.mark.parametrize("faults", ["2.9", "2.12", "2.13", "2.14", "2.15"])
def test_a_profile_says_what_the_installed_torch_cannot_show(faults):
    installed = torch.__version__
    missing = softmetal.activate(faults).missing
    assert missing == softmetal.active_profile().missing
    expected = set()
    if installed < (2, 10) and faults != "2.9":
        expected |= {"torch.nn.functional.scaled_mm", "torch.nn.functional.grouped_mm"}
    if installed < (2, 15) and faults == "2.15":
        expected |= {"torch.mps.Stream", "torch.mps.stream", "torch.mps.set_stream"}
    if installed < (2, 13) and faults in ("2.13", "2.14", "2.15"):
        expected |= {"torch._C._mps_maxBufferLength"}
    assert {sentence.split(" has no ")[1].split(",")[0] for sentence in missing} == expected
    assert all(sentence.startswith(f"torch {installed} has no ") for sentence in missing)
    assert softmetal.activate(None).missing == ()


def test_the_profiler_calls_do_nothing():
    softmetal.activate()
    with torch.mps.profiler.profile():
        torch.ones(2, device="mps")
    torch.mps.profiler.start()
    torch.mps.profiler.stop()


@pytest.mark.parametrize("wanted", [True, False])
def test_metal_capture_records_nothing(monkeypatch, tmp_path, wanted):
    """It answers as on a Mac, where MTL_CAPTURE_ENABLED says whether traces can be captured."""
    monkeypatch.setenv("MTL_CAPTURE_ENABLED", "1" if wanted else "0")
    softmetal.activate()
    assert torch.mps.profiler.is_metal_capture_enabled() is wanted
    assert torch.mps.profiler.is_capturing_metal() is False
    with torch.mps.profiler.metal_capture(str(tmp_path / "trace")):
        assert torch.mps.profiler.is_capturing_metal() is True
        assert torch.ones(2, device="mps").sum().item() == 2
    assert torch.mps.profiler.is_capturing_metal() is False
    with pytest.raises(ZeroDivisionError), torch.mps.profiler.metal_capture("trace"):
        _ = 1 / 0
    assert torch.mps.profiler.is_capturing_metal() is False
    assert not list(tmp_path.iterdir())
    softmetal.deactivate()
    assert not hasattr(torch._C, "_mps_isCapturing")


@pytest.mark.skipif(not hasattr(torch.mps, "load_metallib"), reason="this torch has no torch.mps.load_metallib")
def test_a_compiled_library_is_refused_in_words(tmp_path):
    softmetal.activate()
    (tmp_path / "some.metallib").write_bytes(b"MTLB")
    for what in (b"MTLB", str(tmp_path / "some.metallib")):
        with pytest.raises(RuntimeError, match="compiles MSL source"):
            torch.mps.load_metallib(what)


def test_waits_and_copies_are_counted():
    softmetal.activate()
    x = torch.ones(4, device="mps")
    softmetal.counters.reset()
    torch.mps.synchronize()
    assert (softmetal.counters.synchronizations(), softmetal.counters.host_copies()) == (1, 0)
    x.cpu()
    x.sum().item()
    x.to("mps")
    torch.ones(3).to("mps")
    assert (softmetal.counters.synchronizations(), softmetal.counters.host_copies()) == (3, 2)
    torch.accelerator.synchronize()
    assert softmetal.counters.synchronizations() == 4
    assert softmetal.counters.calls("aten::sum") == 1
    assert softmetal.counters.all_calls()["aten::sum"] == 1


def test_compile_shader_is_torch_mps_compile_shader():
    softmetal.activate()
    library = torch.mps.compile_shader("""
#include <metal_stdlib>
using namespace metal;
kernel void twice(device float* x [[buffer(0)]], uint i [[thread_position_in_grid]]) { x[i] *= 2.0f; }
""")
    x = torch.arange(5.0, device="mps")
    library.twice(x)
    assert x.tolist() == [0, 2, 4, 6, 8]
    with pytest.raises(SyntaxError):
        torch.mps.compile_shader("kernel void broken(")


def test_ops_run_from_many_threads():
    softmetal.activate()
    failures = []

    def work(number):
        generator = torch.Generator().manual_seed(number)
        for _ in range(50):
            x = torch.randn(20, 30, generator=generator)
            if not torch.equal((x.to("mps") @ x.to("mps").t()).cpu(), x @ x.t()):
                failures.append(number)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures
