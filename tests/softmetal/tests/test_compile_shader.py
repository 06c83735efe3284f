"""compile_shader's contract, argument by argument: what torch 2.9 to 2.15 accept, convert, default to and raise."""

import struct
import threading
from pathlib import Path

import pytest
import torch

pytestmark = pytest.mark.kernel_faults
SOURCE = (Path(__file__).parent / "compile_shader.metal").read_text()


@pytest.fixture(scope="module")
def lib():
    import softmetal

    softmetal.activate()
    return torch.mps.compile_shader(SOURCE)


def given(lib, name, value, count, dtype, **options):
    """What a kernel reads from `value` as `count` elements of dtype."""
    y = torch.zeros(count, dtype=dtype, device="mps")
    getattr(lib, name)(y, value, **options)
    return y.cpu()


class TestLibrary:
    def test_dir(self, lib):
        assert {"copy_long", "copy_half", "where_am_i", "tile", "negate"} <= set(dir(lib))
        assert "copy" not in dir(lib)

    def test_kernel_properties(self, lib):
        assert lib.tile.max_threads_per_threadgroup == 1024
        assert lib.tile.thread_execution_width == 32
        assert lib.tile.static_thread_group_memory_length == 400
        assert lib.negate.static_thread_group_memory_length == 0
        assert lib.limited.max_threads_per_threadgroup == 64

    def test_missing_kernel(self, lib):
        with pytest.raises(RuntimeError, match="Failed to create function state object for: nothing_here"):
            lib.nothing_here  # noqa: B018 - the attribute is the call

    def test_max_total_threads_is_the_limit(self, lib):
        y = torch.zeros(128, device="mps")
        lib.limited(y)
        assert y.cpu().all()
        with pytest.raises(ValueError, match="Threadgroup size exceeds 64 limit"):
            lib.limited(y, group_size=128)

    def test_two_libraries_of_one_source(self, lib):
        x = torch.ones(4, device="mps")
        torch.mps.compile_shader(SOURCE).negate(x)
        lib.negate(x)
        assert x.tolist() == [1, 1, 1, 1]

    def test_source_must_be_text(self, lib):
        with pytest.raises(TypeError):
            torch.mps.compile_shader(b"kernel void f() {}")


HEAD = "#include <metal_stdlib>\nusing namespace metal;\n"


@pytest.mark.parametrize(
    "source, says",
    [
        ("kernel void f(device float* x [[buffer(0)]]) {\nx[0] = undeclared;\n}", "program_source:4"),
        ("kernel void f(device float* x [[buffer(0)]]) {\nthreadgroup float* p = x;\n}", "program_source:4"),
        ("kernel void f(device bfloat* x [[buffer(0)]], device float* y [[buffer(1)]]) {\nx[0] = y[0];\n}", "bfloat"),
        ("kernel void f(device float* x [[buffer(0)]]) {\ndouble d = x[0];\n}", "double"),
        ("kernel void f(device float* x [[buffer(0)]]) {\nx[0] = 1; // caf\u00e9\n}", ""),
        (
            "kernel void f(device float* x [[buffer(0)]]) {\nthreadgroup float s[8448];\ns[0] = 1; x[0] = s[0];\n}",
            "33792",
        ),
    ],
    ids=["undeclared", "address space", "float to bfloat", "double", "non-ASCII", "33 KiB of threadgroup memory"],
)
def test_a_bad_source_is_a_syntax_error(lib, source, says):
    with pytest.raises(SyntaxError) as caught:
        torch.mps.compile_shader(HEAD + source)
    assert says in str(caught.value)


class TestValues:
    def test_int_is_int64(self, lib):
        for value in (0, 1, -1, 2**63 - 1, -(2**63)):
            assert given(lib, "copy_long", value, 1, torch.int64).item() == value

    def test_bool_is_int64(self, lib):
        assert given(lib, "copy_long", True, 1, torch.int64).item() == 1
        assert given(lib, "copy_long", False, 1, torch.int64).item() == 0

    def test_float_is_float32(self, lib):
        value = 0.1
        assert (
            given(lib, "copy_float", value, 1, torch.float32).item() == struct.unpack("f", struct.pack("f", value))[0]
        )
        assert given(lib, "copy_float", 1e300, 1, torch.float32).item() == float("inf")
        assert given(lib, "copy_float", float("nan"), 1, torch.float32).isnan()

    def test_lists(self, lib):
        assert given(lib, "copy_long", [3, -4, 5], 3, torch.int64).tolist() == [3, -4, 5]
        assert given(lib, "copy_long", (3, True), 2, torch.int64).tolist() == [3, 1]
        assert given(lib, "copy_float", [0.5, 2.0], 2, torch.float32).tolist() == [0.5, 2.0]
        assert given(lib, "copy_float", [0.5, 2], 2, torch.float32).tolist() == [0.5, 2.0]
        assert given(lib, "copy_long", torch.Size([7, 8]), 2, torch.int64).tolist() == [7, 8]

    def test_long_lists(self, lib):
        values = list(range(512))
        assert given(lib, "copy_long", values, 512, torch.int64).tolist() == values
        with pytest.raises(RuntimeError, match="4096 at most"):
            given(lib, "copy_long", [0] * 513, 1, torch.int64)

    @pytest.mark.parametrize("value", [None, "text", 1j, object(), {1: 2}, torch.float32])
    def test_unsupported(self, lib, value):
        with pytest.raises(RuntimeError, match="Unsupported argument type"):
            given(lib, "copy_long", value, 1, torch.int64)

    def test_bad_lists(self, lib):
        with pytest.raises(RuntimeError, match="Empty list/tuple can not be an argument to metal kernel"):
            given(lib, "copy_long", [], 1, torch.int64)
        with pytest.raises(RuntimeError, match="Unexpected argument types"):
            given(lib, "copy_long", ["a"], 1, torch.int64)
        with pytest.raises(RuntimeError, match="Unable to cast"):
            given(lib, "copy_long", [1, 2.5], 2, torch.int64)

    def test_an_int_that_int64_does_not_hold(self, lib):
        with pytest.raises(RuntimeError, match="Unable to cast"):
            given(lib, "copy_long", 2**63, 1, torch.int64)


class TestCasts:
    @pytest.mark.parametrize(
        "cast, kernel, dtype",
        [
            ("int32", "copy_int", torch.int32),
            ("int16", "copy_short", torch.int16),
            ("int8", "copy_char", torch.int8),
            ("uint8", "copy_uchar", torch.uint8),
            ("fp16", "copy_half", torch.float16),
            ("bf16", "copy_bfloat", torch.bfloat16),
        ],
    )
    def test_each(self, lib, cast, kernel, dtype):
        for options in ({"arg_casts": cast}, {"arg_casts": {1: cast}}):
            assert given(lib, kernel, 100, 1, dtype, **options).item() == 100
            assert given(lib, kernel, [1, 2, 3], 3, dtype, **options).tolist() == [1, 2, 3]
            assert given(lib, kernel, 5.0, 1, dtype, **options).item() == 5

    def test_rounding_and_wrapping(self, lib):
        assert given(lib, "copy_half", 0.1, 1, torch.float16, arg_casts="fp16") == torch.tensor([0.1]).half()
        assert given(lib, "copy_bfloat", 0.1, 1, torch.bfloat16, arg_casts="bf16") == torch.tensor([0.1]).bfloat16()
        assert given(lib, "copy_char", 200, 1, torch.int8, arg_casts="int8").item() == -56
        assert given(lib, "copy_int", 2.9, 1, torch.int32, arg_casts="int32").item() == 2

    def test_other_indices_keep_their_type(self, lib):
        assert given(lib, "copy_long", 9, 1, torch.int64, arg_casts={0: "int8", 5: "fp16"}).item() == 9

    def test_bad_casts(self, lib):
        with pytest.raises(RuntimeError, match="Unsupported cast instruction fp64"):
            given(lib, "copy_long", 1, 1, torch.int64, arg_casts="fp64")
        with pytest.raises(RuntimeError, match="Unexpected caster arg type int"):
            given(lib, "copy_long", 1, 1, torch.int64, arg_casts=3)
        with pytest.raises(RuntimeError, match="Unable to cast"):
            given(lib, "copy_long", 1, 1, torch.int64, arg_casts={"a": "fp16"})

    def test_a_cast_value_is_as_short_as_its_type(self, lib):
        from softmetal import shader

        with pytest.raises(shader.KernelFault, match="bound as int32 .4 bytes each. and read as long"):
            given(lib, "copy_long", 1, 1, torch.int64, arg_casts="int32")


class TestTensors:
    def test_storage_offset_counts_and_strides_do_not(self, lib):
        x = torch.arange(12.0).reshape(3, 4).to("mps")
        lib.negate(x[1:, 2:], threads=3)  # elements 6, 7, 8 of the storage, whatever the view's strides
        assert x.cpu().flatten().tolist() == [0, 1, 2, 3, 4, 5, -6, -7, -8, 9, 10, 11]

    def test_transposed(self, lib):
        x = torch.arange(6.0).reshape(2, 3).to("mps").t()
        lib.negate(x, threads=2)
        assert x.cpu().tolist() == [[0, 3], [-1, 4], [2, 5]]

    @pytest.mark.parametrize("dtype", [torch.int64, torch.complex64, torch.float8_e4m3fn, torch.bool, torch.uint8])
    def test_any_dtype(self, lib, dtype):
        x = torch.zeros(64, dtype=torch.uint8, device="mps").view(dtype)
        lib.negate(x, threads=1)
        assert x.view(torch.uint8).cpu()[:4].tolist() == [0, 0, 0, 128]  # the bits of -0.0f

    def test_cpu_tensor(self, lib):
        for shape in ((1,), (3,), (2, 2), (0,)):
            with pytest.raises(RuntimeError, match="Passed CPU tensor to MPS op"):
                lib.negate(torch.zeros(shape), threads=1)

    def test_zero_dim_cpu_tensor_goes_by_value(self, lib):
        assert given(lib, "copy_float", torch.tensor(2.5), 1, torch.float32).item() == 2.5
        assert given(lib, "copy_int", torch.tensor(-7, dtype=torch.int32), 1, torch.int32).item() == -7
        assert given(lib, "copy_half", torch.tensor(0.5, dtype=torch.float16), 1, torch.float16).item() == 0.5

    def test_zero_dim_mps_tensor_is_memory(self, lib):
        x = torch.tensor(2.0, device="mps")
        lib.negate(x)
        assert x.item() == -2

    def test_other_devices(self, lib):
        from softmetal import shader

        with pytest.raises(shader.KernelFault, match="meta"):
            lib.negate(torch.empty(4, device="meta"))

    def test_more_arguments_than_parameters(self, lib):
        x = torch.ones(2, device="mps")
        lib.negate(x, 1, [2.0], torch.ones(3, device="mps"))
        assert x.tolist() == [-1, -1]

    def test_more_arguments_than_metal_has_buffers(self, lib):
        from softmetal import shader

        with pytest.raises(shader.KernelFault, match="31 buffers"):
            lib.negate(torch.ones(2, device="mps"), *range(31))


def positions(lib, count, **options):
    y = torch.zeros(count * 8, dtype=torch.int32, device="mps")
    lib.where_am_i(y, **options)
    return y.cpu().view(count, 8)


class TestGrid:
    def test_threads_default_to_numel_of_the_first_tensor(self, lib):
        x = torch.zeros(5, device="mps")
        lib.copy_float(x, torch.ones(9, device="mps"))
        assert x.tolist() == [1] * 5

    def test_without_a_tensor_threads_are_needed(self, lib):
        with pytest.raises(RuntimeError, match="Number of threads is undefined or has wrong dimension"):
            lib.negate(1.0)

    def test_one_dimension(self, lib):
        at = positions(lib, 100, threads=100, group_size=32)
        assert at[:, 0].tolist() == [i // 32 for i in range(100)]
        assert at[:, 3].tolist() == [32] * 96 + [4] * 4  # the last threadgroup is partial
        assert set(at[:, 4].tolist()) == {32}
        assert at[:, 5].tolist() == [i % 32 for i in range(100)]
        assert set(at[:, 6].tolist()) == {4}

    def test_default_group_of_one_dimension(self, lib):
        assert set(positions(lib, 100, threads=100)[:, 4].tolist()) == {100}
        assert set(positions(lib, 2000, threads=[2000])[:, 4].tolist()) == {1024}

    def test_default_group_of_more_dimensions(self, lib):
        """max_threads_per_threadgroup by 1 by 1: the group is wider than the grid, and partial."""
        at = positions(lib, 12, threads=(6, 2))
        assert set(at[:, 4].tolist()) == {1024} and set(at[:, 3].tolist()) == {6} and set(at[:, 6].tolist()) == {2}

    def test_three_dimensions(self, lib):
        at = positions(lib, 5 * 4 * 3, threads=(5, 4, 3), group_size=(2, 4, 2))
        expected = [
            [x // 2, 0, z // 2, (1 if x == 4 else 2) * 4 * (1 if z == 2 else 2)]
            for z in range(3)
            for y in range(4)
            for x in range(5)
        ]
        assert at[:, :4].tolist() == expected
        assert at[:, 7].all()

    @pytest.mark.parametrize("threads, group", [(4, (2, 2)), ((4, 4), 2), ((4, 4), (2, 2, 1)), ((4,), (2, 1))])
    def test_group_size_of_another_rank(self, lib, threads, group):
        with pytest.raises(RuntimeError):
            lib.negate(torch.zeros(16, device="mps"), threads=threads, group_size=group)

    @pytest.mark.parametrize("threads", [(), (1, 2, 3, 4), -1, 2.5, "4", (2, None)])
    def test_bad_threads(self, lib, threads):
        with pytest.raises(RuntimeError):
            lib.negate(torch.zeros(16, device="mps"), threads=threads)

    @pytest.mark.parametrize("group", [1025, (1025,), (32, 33), (16, 16, 5)])
    def test_too_large_a_group(self, lib, group):
        threads = 16 if isinstance(group, int) else (16,) * len(group)
        with pytest.raises(ValueError, match="Threadgroup size exceeds 1024 limit"):
            lib.where_am_i(torch.zeros(16**3 * 8, dtype=torch.int32, device="mps"), threads=threads, group_size=group)

    def test_more_threads_than_a_uint_numbers(self, lib):
        from softmetal import shader

        with pytest.raises(shader.KernelFault, match="uint"):
            lib.negate(torch.zeros(16, device="mps"), threads=2**32)

    def test_unknown_option(self, lib):
        with pytest.raises(TypeError):
            lib.negate(torch.zeros(16, device="mps"), grid=4)


class TestErrorBuffer:
    def test_it_is_bound(self, lib, monkeypatch):
        monkeypatch.setattr(torch, "__version__", "2.11.0")  # whichever is installed
        x = torch.zeros(4, device="mps")
        lib.complain(x, error_buf_idx=1)
        assert x.tolist() == [1] * 4

    @pytest.mark.parametrize("index", [-1, -2, 2**32, 1.0, "1"])
    def test_what_is_no_index_is_refused(self, lib, monkeypatch, index):
        monkeypatch.setattr(torch, "__version__", "2.11.0")
        x = torch.zeros(4, device="mps")
        with pytest.raises(RuntimeError, match="C\\+\\+ type 'unsigned int'"):
            lib.complain(x, error_buf_idx=index)
        assert x.tolist() == [0] * 4

    def test_older_torch_does_not_know_it(self, lib, monkeypatch):
        monkeypatch.setattr(torch, "__version__", "2.10.0")
        with pytest.raises(TypeError, match="incompatible function arguments"):
            lib.complain(torch.zeros(4, device="mps"), error_buf_idx=1)


class TestModes:
    def test_launches_are_counted_and_recorded(self, lib):
        from softmetal import shader
        from softmetal.recording import TensorArgument

        x = torch.zeros(4, 4, device="mps")
        before = shader.launches.counts["negate"]
        with shader.launches.record() as made:
            lib.negate(x[1:], threads=4, group_size=2)
            lib.copy_long(torch.zeros(1, dtype=torch.int64, device="mps"), 5)
        lib.negate(x)
        assert shader.launches.counts["negate"] == before + 2
        assert [record.kernel for record in made] == ["negate", "copy_long"]
        assert made[0].arguments == (TensorArgument(torch.float32, (3, 4), (4, 1), 4),)
        assert (made[0].threads, made[0].group_size, made[0].source.strip()) == ((4, 1, 1), (2, 1, 1), SOURCE.strip())
        assert made[1].arguments[1] == 5

    def test_a_fault_that_somebody_catches_is_still_in_the_log(self, lib):
        from softmetal import shader

        shader.fault_log.clear()
        lib.negate(torch.zeros(4, device="mps"))
        assert not shader.fault_log
        with pytest.raises(RuntimeError) as caught:
            lib.negate(torch.zeros(4, device="mps"), threads=5)
        assert list(shader.fault_log) == [caught.value]

    def test_fast_mode_gives_the_same_bits(self, lib):
        from softmetal import shader

        results = []
        for on in (True, False):
            x = torch.arange(1000.0).to("mps")
            with shader.schedule(checks=on):
                lib.negate(x)
            results.append(x.cpu())
        assert torch.equal(*results)

    def test_settings_return_after_an_error(self, lib):
        from softmetal import shader

        before = vars(shader.settings).copy()
        with pytest.raises(ZeroDivisionError), shader.schedule(seed=9, strict=True):
            assert shader.settings.seed == 9 and shader.settings.strict
            1 / 0  # noqa: B018 - to leave by an error
        assert vars(shader.settings) == before

    def test_launches_from_several_threads(self, lib):
        tensors = [torch.full((257,), float(i), device="mps") for i in range(4)]
        errors = []

        def work(x):
            try:
                for _ in range(50):
                    lib.negate(x, group_size=32)
            except Exception as error:
                errors.append(error)

        workers = [threading.Thread(target=work, args=(x,)) for x in tensors]
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join()
        assert not errors
        for i, x in enumerate(tensors):
            assert (x.cpu() == i).all()
