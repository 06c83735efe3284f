"""The peers' kernels without their sources: what is launched for a case, and how a source is made fit to be compiled.

The sources here are made up, with the names and arguments of the real ones.
"""

import json
import struct

import pytest

from gpu import build
from gpu.cases import Tensor, along_k_case, fp8_linear_case, grouped_case, linear_case, pad_case, softmax_case
from gpu.peers import Peers, mlx, pytorch
from gpu.peers.call import Call, TooManyGroups
from gpu.peers.source import Folder, Source, prepare

SOFTMAX = """
#include "mlx/backend/metal/kernels/utils.h"
#define make(name, type) template [[host_name("block_softmax_" name)]] [[kernel]] decltype(block<type>) block<type>;
constant bool flipped [[function_constant(7)]];
template <typename T>
[[kernel]] void block(const device T* in, device T* out, constant int& n,
                      const device T* bias [[buffer(3), function_constant(flipped)]],
                      uint group [[threadgroup_position_in_grid]], uint lane [[thread_position_in_threadgroup]]) {
  for (int i = lane; i < n; i += 32) {
    const T x = in[group * n + i];
    out[group * n + i] = flipped ? x : ::ours::half_of(x);
  }
}
make("float32", float)
make("float16", half)
"""
UTILS = (
    "#pragma once\n#include <metal_stdlib>\nnamespace ours { template <class T> T half_of(T x) { return x / T(2); } }\n"
)


@pytest.fixture
def folder(tmp_path):
    kernels = tmp_path / "mlx" / "backend" / "metal" / "kernels"
    kernels.mkdir(parents=True)
    (kernels / "softmax.metal").write_text(SOFTMAX)
    (kernels / "utils.h").write_text(UTILS)
    return tmp_path


def launched(make, case, shape, dtype="float32"):
    """(the steps of a peer's call for the case, whether it has one)"""
    call = Call("a peer")
    taken = make(call, case, [{"dtype": dtype, "shape": shape}])
    return call.plan()["steps"] if taken else None


def test_only_the_kernels_that_are_measured_are_compiled(folder):
    text = prepare(Folder(folder, mlx.KERNELS), Source("softmax.metal", ((7, "false"),)), {"block_softmax_float32"})
    assert 'host_name("block_softmax_" "float32")' in text and "float16" not in text
    assert "constant constexpr bool flipped = false;" in text and "function_constant" not in text
    assert "ours::half_of" in text and "::ours" not in text
    assert text.count("#include") == 1


def test_a_kernel_that_a_source_has_not_is_named(folder):
    with pytest.raises(KeyError, match="softmax.metal has no kernel block_softmax_int8"):
        prepare(Folder(folder, mlx.KERNELS), Source("softmax.metal"), {"block_softmax_int8"})


def test_a_folder_that_is_not_the_peers_is_one_sentence(tmp_path, capsys):
    assert build.main([str(tmp_path / "out"), "--peers", str(tmp_path)]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(f"gpu.build: {tmp_path} has none of mlx/backend/metal/kernels") and "this peer's" in line


def test_a_peers_launches_are_built_beside_ours(folder, tmp_path):
    case = softmax_case("_softmax", (5, 100), "float32", "speed", row="softmax")
    (folder / "mlx" / "backend" / "metal" / "kernels" / "softmax.metal").write_text(SOFTMAX.replace(
        'make("float16"', 'constant constexpr bool unused = true;\nmake("float16"').replace(
        "constant bool flipped [[function_constant(7)]];", "constant constexpr bool flipped = true;").replace(
        ", function_constant(flipped)", ""))  # fmt: skip
    out = tmp_path / "out"
    build.build(out, [case], Peers(folder, None))
    plan = json.loads((out / "plan.json").read_text())
    ((peer,),) = [made["peers"] for made in plan["cases"]]
    (step,) = peer["steps"]
    assert (peer["peer"], step["kernel"]) == ("MLX", "block_softmax_float32")
    assert step["threads"] == [5 * 32, 1, 1] and step["group"] == [32, 1, 1]
    kernel = plan["kernels"][step["kernel"]]
    text = (out / kernel["file"]).read_text()
    assert f".visible .entry {kernel['symbol']}(" in text and ".maxntid 32" in text
    assert peer["results"][0]["shape"] == [5, 100] and "sources" not in peer


def test_what_is_not_timed_has_no_peers(folder):
    ((made,), _) = build.record_all([softmax_case("_softmax", (5, 100), "float32", "small")], Peers(folder, None))
    assert made["peers"] == []


@pytest.mark.parametrize(("shape", "kernel", "threads", "group"), [
    ((3, 1000), "block_softmax_float32", 3 * 256, 256),
    ((2, 4096), "block_softmax_float32", 2 * 1024, 1024),
    ((2, 4097), "looped_softmax_float32", 2 * 1024, 1024),
])  # fmt: skip
def test_mlx_softmax(shape, kernel, threads, group):
    (step,) = launched(mlx.softmax, softmax_case("_softmax", shape, "float32", "speed"), shape)
    assert (step["kernel"], step["threads"][0], step["group"][0]) == (kernel, threads, group)
    assert step["args"][2] == {"hex": struct.pack("<i", shape[-1]).hex()}
    assert launched(mlx.softmax_precise, softmax_case("_softmax", shape, "float32", "speed"), shape) is None
    assert launched(mlx.softmax, softmax_case("_softmax", (3, 4, 5), "float32", "speed", dim=1), shape) is None


def test_mlx_vectors():
    (step,) = launched(mlx.gemv, linear_case(1, 5000, 2048, "bfloat16", "speed"), (1, 5000))
    assert step["kernel"] == "gemv_bfloat16_bm8_bn1_sm1_sn32_tm4_tn4_nc0_axpby0" and step["group"] == [32, 1, 8]
    assert step["threads"] == [157 * 32, 1, 8]
    (step,) = launched(mlx.gemv, linear_case(1, 128, 2048, "bfloat16", "speed"), (1, 128))  # long K: it is split
    assert step["kernel"].startswith("gemv_bfloat16_bm1_bn8_") and step["group"] == [32, 8, 1]
    (step,) = launched(mlx.gemv_wide, linear_case(8, 4096, 2048, "float16", "speed"), (8, 4096))
    assert step["kernel"] == "gemv_wide_float16_nv4_kl16" and step["threads"] == [2 * 32, 1024 * 2, 1]
    (step,) = launched(mlx.gemv_wide, linear_case(4, 70000, 2048, "float16", "speed"), (4, 70000))
    assert step["kernel"] == "gemv_wide_float16_nv4_kl32" and step["threads"] == [32, 17500 * 4, 1]
    assert launched(mlx.gemv_wide, linear_case(16, 4096, 2048, "float16", "speed"), (16, 4096)) is None
    with pytest.raises(TooManyGroups):
        launched(mlx.gemv_wide, linear_case(4, 262144, 2048, "float16", "speed"), (4, 262144))


def test_experts_in_order_are_one_product():
    case = grouped_case((3, 3, 70), 128, 64, "bfloat16", "speed", row="grouped prefill")
    (step,) = launched(mlx.gather_mm_rhs, case, (70, 128), "bfloat16")
    assert step["kernel"] == "steel_gather_mm_rhs_nt_bfloat16_bfloat16_bm16_bn64_bk16_wm1_wn2"
    assert step["threads"] == [2 * 32, 5 * 2, 1] and step["group"] == [32, 2, 1]
    assert bytes.fromhex(step["args"][4]["hex"])[:24] == struct.pack("<6i", 70, 128, 64, 64, 64, 128)
    assert len(bytes.fromhex(step["args"][4]["hex"])) == 72
    call = Call("a peer")
    mlx.gather_mm_rhs(call, case, [{"dtype": "bfloat16", "shape": (70, 128)}])
    assert call.plan()["inputs"][-1]["values"] == [0] * 3 + [2] * 67
    assert launched(mlx.gather_mv, case, (70, 128), "bfloat16") is None


@pytest.mark.parametrize(("shape", "dim", "kernels", "threads"), [
    ((300, 1000), -1, ["softmax_row_float_u32"], [[38 * 256, 1, 1]]),
    ((4, 151936), -1, ["softmax_partial_float_u32", "softmax_finalize_float_u32"], [[75 * 256, 4, 1]] * 2),
    ((4096, 4096), -1, ["softmax_float_u32"], [[1, 4096 * 256, 1]]),
    ((8, 77, 4096), 1, ["softmax_float_u32"], [[4096, 8 * 32, 1]]),
])  # fmt: skip
def test_pytorch_softmax(shape, dim, kernels, threads):
    steps = launched(pytorch.softmax, softmax_case("_softmax", shape, "float32", "speed", dim=dim), shape)
    assert [step["kernel"] for step in steps] == kernels
    assert [step["threads"] for step in steps] == threads


def test_pytorch_vectors():
    (step,) = launched(pytorch.gemv, linear_case(1, 8192, 2048, "bfloat16", "speed"), (1, 8192))
    assert step["kernel"] == "gemv_nt_bfloat_8_8_none_xc" and step["threads"] == [1024 * 256, 1, 1]
    (step,) = launched(pytorch.gemv, linear_case(1, 100, 2044, "float16", "speed"), (1, 100))
    assert step["kernel"] == "gemv_nt_half_4_4_none_xc"
    (step,) = launched(pytorch.gemv, linear_case(1, 100, 2045, "float32", "speed"), (1, 100))
    assert step["kernel"] == "gemv_nt_float_16_1_none_xs"


def test_pytorch_pad():
    case = pad_case((1, 96, 6, 240, 416), (1, 1, 1, 1, 2, 0), "float16", "speed")
    (step,) = launched(pytorch.pad, case, (1, 96, 8, 242, 418), "float16")
    assert step["kernel"] == "constant_pad_nd_dense_half"
    assert step["threads"] == [105, 242, 768] and step["group"] == [105, 9, 1]
    sizes = struct.unpack("<9I", bytes.fromhex(step["args"][2]["hex"]))
    assert sizes == (416, 240, 6, 418, 242, 8, 1, 1, 2)
    (step,) = launched(pytorch.pad, pad_case((7, 5, 30), (3, 1), "float32", "speed"), (7, 5, 34))
    assert struct.unpack("<9I", bytes.fromhex(step["args"][2]["hex"])) == (30, 1, 1, 34, 1, 1, 3, 0, 0)
    assert step["threads"] == [9, 1, 35]


def test_pytorch_experts():
    case = grouped_case((0, 30, 70), 100, 64, "bfloat16", "speed", row="grouped prefill")
    (step,) = launched(pytorch.grouped_mm, case, (70, 100), "bfloat16")
    assert step["kernel"] == "grouped_mm_rows_bfloat_bm16_u32" and step["threads"] == [2 * 64, 5 + 3, 1]
    sizes = struct.unpack("<11I", bytes.fromhex(step["args"][4]["hex"]))
    assert sizes == (70, 100, 64, 3, 64, 1, 1, 64, 100, 1, 6400)
    few = grouped_case((1, 2, 3), 100, 64, "bfloat16", "speed", row="grouped decode")
    assert launched(pytorch.grouped_mm, few, (3, 100), "bfloat16") is None  # another kernel of theirs


def test_groups_along_k():
    case = along_k_case((16, 16, 80), 128, 96, "a model")
    (step,) = launched(mlx.segmented_mm, case, (3, 128, 96), "bfloat16")
    assert step["kernel"] == "steel_segmented_mm_tn_bfloat16_bfloat16_bm64_bn64_bk16_wm2_wn2"
    assert step["threads"] == [2 * 32, 2 * 2, 3 * 2] and step["group"] == [32, 2, 2]
    call = Call("a peer")
    mlx.segmented_mm(call, case, [{"dtype": "bfloat16", "shape": (3, 128, 96)}])
    assert call.plan()["inputs"][-1]["values"] == [0, 16, 16, 16, 16, 80]
    (step,) = launched(pytorch.grouped_mm_along_k, case, (3, 128, 96), "bfloat16")
    assert step["kernel"] == "grouped_mm_k_bfloat_bm64_u32" and step["threads"] == [2 * 128, 2, 3]
    rows = grouped_case((0, 30, 70), 100, 64, "bfloat16", "speed", row="grouped prefill")
    assert launched(mlx.segmented_mm, rows, (70, 100)) is launched(pytorch.grouped_mm_along_k, rows, (70, 100)) is None


def test_pytorch_fp8():
    for rows, kernel, threads in ((3, "scaled_mm_few_rows_3_bfloat", 1024 * 128), (8, "scaled_mm_bfloat", 128 * 128)):
        case = fp8_linear_case(rows, 4096, 512, "bfloat16", "speed")
        (step,) = launched(pytorch.scaled_mm_of_linear, case, (rows, 4096), "bfloat16")
        assert (step["kernel"], step["threads"][0]) == (kernel, threads)
    params = bytes.fromhex(step["args"][6]["hex"])
    assert len(params) == 72 and struct.unpack_from("<3I", params) == (8, 4096, 512)
    assert struct.unpack_from("<6q", params, 16) == (512, 1, 1, 512, 4096, 1) and params[64:67] == b"\1\0\0"


def test_memory_is_described_in_the_form_of_the_plan():
    call = Call("a peer")
    ((x,), (y,)) = call.use("op", (Tensor("float16", (2, 3), (1, 2), 5), 4), [{"dtype": "float32", "shape": [2]}])
    assert (x["stride"], x["offset"], y["stride"]) == ([1, 2], 5, [1])
    assert call.plan()["storages"] == [(5 + 6) * 2, 8] and call.plan()["args"] == [{"input": True}, 4]
