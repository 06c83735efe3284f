"""The FP8 layers of a real pack of other people's, which METAL_KERNELS_PEERS has a checkout of: on the device, through
the pack, against the CPU. What they import besides torch are stand-ins: nothing of it has a part in a layer."""
import importlib.util
import os
import sys
import types
from pathlib import Path

import pytest
import torch
from kitchen_toys import randn, to_mps
from torch import nn

PEERS = os.environ.get("METAL_KERNELS_PEERS", "")
WAN = Path(PEERS, "ComfyUI-WanVideoWrapper")
KNOWN = r"Undefined type Float8_e|_scaled_mm|does not support linear|expected .*dtype|same dtype"
STAND_INS = {
    "accelerate": dict(init_empty_weights=None),
    "peer_wan": dict(__path__=[]),
    "peer_wan.utils": dict(log=types.SimpleNamespace(info=lambda text: None)),
    "peer_wan.gguf": dict(__path__=[]),
    "peer_wan.gguf.gguf_utils": dict(GGUFParameter=(), dequantize_gguf_tensor=None),
}

pytestmark = pytest.mark.skipif(not PEERS, reason="METAL_KERNELS_PEERS is not set: a folder of other packs")


@pytest.fixture(scope="module")
def wan():
    """name -> a module of ComfyUI-WanVideoWrapper. Imported once: it defines operations of torch's."""
    found, before = {}, {name: sys.modules.get(name) for name in STAND_INS}
    for name, members in STAND_INS.items():
        sys.modules[name] = types.ModuleType(name)
        vars(sys.modules[name]).update(members)
    try:
        for name in "custom_linear", "fp8_optimization":
            spec = importlib.util.spec_from_file_location(f"peer_wan.{name}", WAN / f"{name}.py")
            found[name] = importlib.util.module_from_spec(spec)
            spec.loader.exec_module(found[name])
    finally:
        for name, module in before.items():
            del sys.modules[name]
            if module is not None:
                sys.modules[name] = module
    return types.SimpleNamespace(**found)


def custom_linear(wan, dtype, scale):
    """Their layer that casts weight and bias in every forward, with a scale or without."""
    return wan.custom_linear.CustomLinear(48, 32, True, compute_dtype=torch.bfloat16, scale_weight=scale)


def fp8_matmul(wan, dtype, scale):
    """Their `fast` mode: a Linear that is given a forward by torch._scaled_mm."""
    model = nn.Sequential(nn.Linear(48, 32))
    wan.fp8_optimization.convert_fp8_linear(
        model, torch.bfloat16, scale_weight_keys={} if scale is None else {"0.scale_weight": scale})
    return model[0]


def filled(layer, dtype):
    layer.weight = nn.Parameter(to_mps(randn(32, 48).to(dtype)), requires_grad=False)
    layer.bias = nn.Parameter(randn(32, seed=1).bfloat16().to("mps"), requires_grad=False)
    return layer


CASES = [(custom_linear, torch.float8_e4m3fn), (custom_linear, torch.float8_e5m2), (fp8_matmul, torch.float8_e4m3fn)]
cases = pytest.mark.parametrize("make, dtype", CASES, ids=lambda each: getattr(each, "__name__", str(each)))


@pytest.mark.parametrize("scale", [None, 0.25])
@pytest.mark.parametrize("rows", [(1, 1), (1, 40)], ids=["one row", "forty rows"])
@cases
def test_its_layers_are_right(package, wan, make, dtype, rows, scale):
    x = randn(*rows, 48, seed=2).bfloat16()
    layer = filled(make(wan, dtype, None if scale is None else torch.tensor(scale, device="mps")), dtype)
    given = x.to(torch.float8_e4m3fn) if make is fp8_matmul else x
    expected = given.double() @ (randn(32, 48).to(dtype).double() * (scale or 1.0)).t() + layer.bias.cpu().double()
    with torch.inference_mode():
        actual = layer(x.to("mps"))
    assert actual.dtype is torch.bfloat16 and actual.device.type == "mps"
    torch.testing.assert_close(actual.cpu().double(), expected, rtol=2e-2, atol=0.15)


@cases
def test_they_crash_on_stock(package, wan, make, dtype):
    layer = filled(make(wan, dtype, None), dtype)
    with package.kernels.using(fp8="off"), pytest.raises((RuntimeError, NotImplementedError, TypeError), match=KNOWN):
        layer(randn(1, 1, 48).bfloat16().to("mps"))
