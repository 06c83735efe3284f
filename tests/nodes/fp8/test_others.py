"""Beside other packs for FP8 on Macs: what they hold stays with them, the status says so, the rest is ours."""
import importlib
import json
import os
import subprocess
import sys
import types

import pytest
import torch
import torch.nn.functional as F
from kitchen_toys import randn
from pack import load

E4M3 = torch.float8_e4m3fn
ASFP8 = "/Users/me/ComfyUI/custom_nodes/ComfyUI-AppleSilicon-FP8._patches.linear_fp8"


@pytest.fixture
def others():
    return importlib.import_module(f"{load().__name__}.nodes.fp8.others")


@pytest.fixture
def status():
    return importlib.import_module(f"{load().__name__}.nodes.status.report")


def written_in(module, function, **names):
    """The function as if another pack's module had defined it."""
    return types.FunctionType(function.__code__, {"__name__": module, **names}, argdefs=function.__defaults__)


def their_linear(x, weight, bias=None):
    return stock(x, weight.to(torch.float32) if weight.dtype.itemsize == 1 else weight, bias)  # noqa: F821


def their_product(*arguments, **named):
    return stock(*arguments, **named)  # noqa: F821


def test_nobody_else_is_here(others, package, status):
    assert others.held() == {} and others.notes(set()) == []
    assert status.collect()["others"] == {}


def test_python_functions_in_torchs_places(package, monkeypatch, others, status):
    """As ComfyUI-AppleSilicon-FP8 does. Its F.linear decodes the weight; a call that comes past it is ours."""
    stock = F.linear
    monkeypatch.setattr(F, "linear", written_in(ASFP8, their_linear, stock=stock, torch=torch))
    monkeypatch.setattr(torch, "_scaled_mm", written_in(ASFP8, their_product, stock=torch._scaled_mm))
    assert others.held() == {"torch._scaled_mm": ASFP8, "torch.nn.functional.linear": ASFP8}
    assert ("  Note: ComfyUI-AppleSilicon-FP8 holds torch._scaled_mm, torch.nn.functional.linear, which stay with it; "
            "the kernels take what comes past it") in status.as_text(status.collect()).splitlines()
    x, weight = randn(4, 32), randn(16, 32).to(E4M3)
    on_mps = weight.view(torch.uint8).to("mps").view(E4M3)
    package.kernels.reset_counters()
    theirs_result, ours = F.linear(x.to("mps"), on_mps), stock(x.to("mps"), on_mps)
    for result in (theirs_result, ours):
        torch.testing.assert_close(result.cpu(), x @ weight.float().t(), rtol=1e-5, atol=1e-4)
    ops = package.kernels.status()["kernels"]["fp8"]["ops"]
    assert ops["linear"]["taken_by_dtype"]["float8_e4m3fn"] == 1, "theirs gave it a decoded weight"
    assert ops["copy_"]["taken"] == 1


# A package that torch loads at its own import and that registers kernels on MPS, as fp4-fp8-for-torch-mps does.
AUTOLOADED = '''
import torch

lib = torch.library.Library("aten", "IMPL")
stock = {op: torch.library.get_kernel(f"aten::{op}", "MPS") for op in ("copy_", "linear")}
calls = []


def through(op):
    def kernel(keyset, *args, **kwargs):
        calls.append(op)
        if op == "linear" and args[1].dtype is torch.float8_e4m3fn:
            return torch.full((1,), 9.0, device="mps")
        return stock[op].call_boxed(keyset, *args, **kwargs)
    return kernel


for op in stock:
    lib.impl(op, through(op), "MPS", with_keyset=True)
lib.impl("_scaled_mm", lambda *args, **kwargs: torch.full((2,), 9.0, device="mps"), "MPS")
'''

BESIDE = '''
import sys
sys.path[:0] = [{tests!r}, {folder!r}]
import json
import softmetal
import torch
softmetal.activate(faults="2.13")
import fp4_fp8_for_torch_mps as theirs
from pack import load_as_comfyui
pack, _ = load_as_comfyui()
import importlib
status = importlib.import_module(f"{{pack.__name__}}.nodes.status.report")
E4M3 = torch.float8_e4m3fn
values = torch.arange(32 * 32, dtype=torch.int32).remainder(120).to(torch.uint8)
fp8 = values.to("mps").view(E4M3).view(32, 32)
from comfy_kitchen.tensor import QuantizedTensor, TensorCoreFP8Layout
params = TensorCoreFP8Layout.Params(scale=torch.tensor(0.5), orig_dtype=torch.float32, orig_shape=(32, 32))
x = torch.ones(2, 32)
weight = QuantizedTensor(fp8, "TensorCoreFP8Layout", params)
result = torch.nn.functional.linear(x.to("mps"), weight).cpu()
expected = x @ (values.view(E4M3).view(32, 32).float() * 0.5).t()
print(json.dumps({{
    "text": status.as_text(status.collect()),
    "registered": pack.metal_kernels.registered_now(),
    "linear": torch.nn.functional.linear(x.to("mps"), fp8).tolist(),
    "scaled_mm": torch._scaled_mm(fp8, fp8.t(), torch.ones((), device="mps"), torch.ones((), device="mps")).tolist(),
    "joined": torch.cat([fp8, fp8], 1).view(torch.uint8).sum().item() == 2 * values.sum().item(),
    "kitchen": torch.allclose(result, expected),
    "theirs": sorted(set(theirs.calls)),
}}))
'''


def test_kernels_in_the_dispatcher(tmp_path):
    """As the AppMana package does, before our pack is loaded: in a process of its own."""
    from pathlib import Path

    (tmp_path / "fp4_fp8_for_torch_mps.py").write_text(AUTOLOADED)
    tests = str(Path(__file__).parents[2])
    done = subprocess.run([sys.executable, "-c", BESIDE.format(tests=tests, folder=str(tmp_path))],
                          capture_output=True, text=True, timeout=280, env=os.environ)
    assert done.returncode == 0, done.stderr[-3000:]
    found = json.loads(done.stdout.splitlines()[-1])
    held = "aten::_scaled_mm, aten::copy_, aten::linear"
    assert (f"  Note: fp4-fp8-for-torch-mps is installed and holds {held}, which stay with it; the kernels take the "
            "rest") in found["text"].splitlines()
    assert "another pack holds aten::copy_, aten::linear, aten::_scaled_mm" in found["text"]
    assert "linear [auto]: unavailable (another pack already patches aten::linear on MPS)" in found["text"]
    assert "fp8" in found["registered"] and "pad" in found["registered"] and "linear" not in found["registered"]
    assert found["linear"] == [9.0] and found["scaled_mm"] == [9.0, 9.0], "theirs answer"
    assert found["theirs"] == ["copy_", "linear"]
    assert found["kitchen"] and found["joined"], "the rest is ours"
