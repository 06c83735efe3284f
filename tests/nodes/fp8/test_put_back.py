"""A LoRA is taken out of quantised weights that "Unload models" put back before: there ComfyUI's own function fails."""
import importlib
from types import SimpleNamespace

import pytest
import torch
from comfy_kitchen.tensor import QuantizedTensor
from model_files import part, random

KNOWN = "Cannot set version_counter for inference tensor"


@pytest.fixture
def utils(loaded, monkeypatch):
    """comfy.utils with the pack's functions before it, while `mode` is not off."""
    stock = part("stock")
    stock.uninstall()
    found = SimpleNamespace(mode="auto")
    monkeypatch.setattr(stock.library, "metal_kernels", SimpleNamespace(
        obstacle=lambda: None, modes=lambda: {"fp8": found.mode}))
    stock.install()
    found.set_attr_param, found.stock = importlib.import_module("comfy.utils").set_attr_param, stock
    yield found
    stock.uninstall()


def layer():
    """A module with a quantised weight, as a loader makes it: in inference mode."""
    with torch.inference_mode():
        weight = QuantizedTensor.from_float(random(16, 32), "TensorCoreFP8Layout")
        module = torch.nn.Module()
        module.weight = torch.nn.Parameter(weight, requires_grad=False)
    return module


def unloaded(utils):
    """The module after "Unload models", which ComfyUI does between prompts, and the weight that is to be put back."""
    module = layer()
    utils.set_attr_param(module, "weight", module.weight)
    assert not module.weight.is_inference()
    return module


def test_a_weight_comes_back_as_it_was(utils):
    module = unloaded(utils)
    before = module.weight
    with torch.inference_mode():
        for _ in range(2):
            utils.set_attr_param(module, "weight", before)
            assert isinstance(module.weight, torch.nn.Parameter) and module.weight.storage_dtype is torch.float8_e4m3fn
            assert torch.equal(module.weight.dequantize(), before.dequantize())
            assert torch.equal(module.weight.params.scale, before.params.scale)


def test_it_is_what_fails_without(utils):
    module = unloaded(utils)
    utils.mode = "off"
    with torch.inference_mode(), pytest.raises(RuntimeError, match=KNOWN):
        utils.set_attr_param(module, "weight", module.weight)


def test_other_weights_are_ComfyUIs_own_matter(utils):
    """No copy is made of them, nor of a quantised one that needs none."""
    module, plain = layer(), random(4, 4)
    with torch.inference_mode():
        for value in plain, module.weight:
            utils.set_attr_param(module, "weight", value)
            held = getattr(module.weight, "_qdata", module.weight), getattr(value, "_qdata", value)
            assert held[0].data_ptr() == held[1].data_ptr()
    utils.set_attr_param(module, "weight", plain)
    assert module.weight.data_ptr() == plain.data_ptr()
