"""Beside the real package fp4-fp8-for-torch-mps, which METAL_KERNELS_PEERS has unpacked: what it holds stays with it,
the status says so, the rest is ours and right. In a process of its own, for it can't be taken out again.

It registers above MPS's own kernels and calls what is below. For `copy_` that is on a Mac PyTorch's native one; the
software device has its own in the place of the package's, so the test puts it below. torch loads it before anything
else; where that is switched off, something may import it after us. Whole graphs:
tests/comfyui/test_beside_other_packs.py.
"""
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

PEERS = os.environ.get("METAL_KERNELS_PEERS", "")
PACKAGE = "fp4_fp8_for_torch_mps"

pytestmark = pytest.mark.skipif(not Path(PEERS or ".", PACKAGE).is_dir(),
                                reason="METAL_KERNELS_PEERS names no folder with fp4_fp8_for_torch_mps")  # fmt: skip

SCRIPT = '''
import importlib, json, sys
sys.path[:0] = [{tests!r}, {peers!r}]
import softmetal
import torch
import torch.nn.functional as F

softmetal.activate(faults="2.13")
values = torch.arange(32 * 32).remainder(120).to(torch.uint8)
numbers = values.view(torch.float8_e4m3fn).view(32, 32)
row = torch.arange(32.0).expand(2, 32).contiguous()
expected = dict(linear=row @ (numbers.float() * 0.5).t(), padded=F.pad(row, (1, 2)), softmax=torch.softmax(row, 1),
                joined=torch.cat([values.view(32, 32)] * 2, 1), turned=values.view(32, 32).t().contiguous())

native, host = (torch.library.get_kernel("aten::copy_", key) for key in ("MPS", "CPU"))


def copy_(keyset, self, src, non_blocking=False):
    src = src if isinstance(src, torch.Tensor) else torch.tensor(src)
    kernel = native if "mps" in (self.device.type, src.device.type) else host
    return kernel.call_boxed(keyset, self, src, non_blocking)


below = torch.library.Library("aten", "IMPL")
below.impl("copy_", copy_, "CompositeExplicitAutograd", with_keyset=True, allow_override=True)
from pack import load_as_comfyui

if {order!r} == "theirs first":
    import {package}
pack, _ = load_as_comfyui()
import {package}
status = importlib.import_module(f"{{pack.__name__}}.nodes.status.report")
from comfy_kitchen.tensor import QuantizedTensor, TensorCoreFP8Layout

fp8, x = numbers.to("mps"), row.to("mps")
params = TensorCoreFP8Layout.Params(scale=torch.tensor(0.5), orig_dtype=torch.float32, orig_shape=(32, 32))
actual = dict(linear=F.linear(x, QuantizedTensor(fp8, "TensorCoreFP8Layout", params)), padded=F.pad(x, (1, 2)),
              softmax=torch.softmax(x, 1), joined=torch.cat([fp8, fp8], 1).view(torch.uint8),
              turned=fp8.t().contiguous().view(torch.uint8))
text, registered = status.as_text(status.collect()), pack.metal_kernels.registered_now()
pack.metal_kernels.uninstall()
held = {{}}
for op in "copy_", "linear", "_scaled_mm", "mm", "_to_copy":
    lines = [line for line in torch._C._dispatch_dump("aten::" + op).splitlines() if line.startswith("MPS: ")]
    held[op] = len(lines) == 1 and {package!r} in lines[0]
print(json.dumps(dict(text=text, registered=registered, theirs=held, right={{
    name: bool(torch.allclose(actual[name].cpu(), expected[name], rtol=1e-6)) for name in expected}})))
'''


@pytest.fixture(scope="module", params=["theirs first", "ours first"])
def beside(request):
    script = SCRIPT.format(tests=str(Path(__file__).parents[2]), peers=PEERS, package=PACKAGE, order=request.param)
    # It loads itself with torch where it is installed; before the software device is there, on a Mac after MPS is.
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=280,
                          env={**os.environ, "TORCH_DEVICE_BACKEND_AUTOLOAD": "0"})
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout.splitlines()[-1]) | {"order": request.param}


def test_the_status_says_what_it_holds(beside):
    lines = beside["text"].splitlines()
    held = "aten::_scaled_mm, aten::copy_, aten::linear"
    assert (f"  Note: fp4-fp8-for-torch-mps is installed and holds {held}, which stay with it; the kernels take the "
            "rest") in lines
    if beside["order"] == "theirs first":
        assert "  linear [auto]: unavailable (another pack already patches aten::linear on MPS)" in lines
        assert set(beside["registered"]) == {"pad", "softmax", "fp8", "grouped_mm"}
    else:
        assert "  linear [auto]: patched, but another pack now answers for aten::linear" in lines
        assert ("  fp8 [auto]: patched, but another pack now answers for aten::copy_, aten::linear, aten::_scaled_mm"
                in lines)


def test_the_rest_is_ours_and_right(beside):
    assert beside["right"] == dict.fromkeys(("linear", "padded", "softmax", "joined", "turned"), True)
    for line in ("aten::constant_pad_nd: 1 taken", "aten::_softmax: 1 taken", "aten::cat: 1 taken",
                 "comfy_kitchen::linear on an FP8 layout: 1 taken"):
        assert line in beside["text"]


def test_what_it_holds_is_its_own_after_uninstall_too(beside):
    assert beside["theirs"] == dict.fromkeys(("copy_", "linear", "_scaled_mm", "mm", "_to_copy"), True)
