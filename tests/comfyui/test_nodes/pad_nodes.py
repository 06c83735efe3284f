"""Nodes that pad on the device, so that their result shows who took the pad: stock's is wrong under faults "2.13"."""
import asyncio
import hashlib
import time

import torch
from comfy.model_management import get_torch_device, throw_exception_if_processing_interrupted
from comfy.utils import ProgressBar
from comfy_api.latest import io

from .routes import pack

INPUTS = [io.AnyType.Input("value", optional=True), io.Int.Input("seed", default=0, min=0, max=1000, optional=True)]
OUTPUTS = [io.AnyType.Output("value"), io.String.Output("digest")]


def pad(seed=0):
    """A report of one rank-5 pad with an inner extent of 65536: stock of torch 2.13 writes the fill over the data."""
    x = torch.randn(1, 1, 2, 256, 256, generator=torch.Generator().manual_seed(seed)).to(get_torch_device())
    before = pack().metal_kernels.taken().get("pad", 0)
    y = torch.nn.functional.pad(x, (0, 0, 0, 0, 2, 0)).cpu()
    return {
        "digest": hashlib.sha256(y.contiguous().view(torch.uint8).numpy().tobytes()).hexdigest()[:16],
        "by": "pack" if pack().metal_kernels.taken().get("pad", 0) > before else "stock",
        "right": torch.equal(y, torch.nn.functional.pad(x.cpu(), (0, 0, 0, 0, 2, 0))),
    }


def result(reports, value=None):
    return io.NodeOutput(value, reports[-1]["digest"], ui={"reports": reports})


def schema(node_id, *inputs, **more):
    return io.Schema(node_id=node_id, category="test", inputs=[*INPUTS, *inputs], outputs=OUTPUTS, is_output_node=True,
                     **more)


class TestPad(io.ComfyNode):
    """Pads once, then hands the value on."""

    @classmethod
    def define_schema(cls):
        return schema("TestPad", io.AnyType.Input("also", optional=True))

    @classmethod
    def execute(cls, value=None, seed=0, also=None):
        return result([pad(seed)], value)


class TestFail(io.ComfyNode):
    """Pads, then fails."""

    @classmethod
    def define_schema(cls):
        return schema("TestFail")

    @classmethod
    def execute(cls, value=None, seed=0):
        pad(seed)
        raise RuntimeError("this node always fails")


class TestSlow(io.ComfyNode):
    """Pads for at most `seconds`, and stops when the user presses cancel."""

    @classmethod
    def define_schema(cls):
        return schema("TestSlow", io.Float.Input("seconds", default=30.0, optional=True))

    @classmethod
    def execute(cls, value=None, seed=0, seconds=30.0):
        end, bar, reports = time.monotonic() + seconds, ProgressBar(1000), []
        while time.monotonic() < end:
            reports = [pad(seed)]
            bar.update(1)
            throw_exception_if_processing_interrupted()
            time.sleep(0.02)
        return result(reports, value)


class TestAsync(io.ComfyNode):
    """Pads, waits while other nodes run, pads again."""

    @classmethod
    def define_schema(cls):
        return schema("TestAsync", io.Float.Input("seconds", default=0.5, optional=True))

    @classmethod
    async def execute(cls, value=None, seed=0, seconds=0.5):
        first = pad(seed)
        await asyncio.sleep(seconds)
        return result([first, pad(seed)], value)


class TestLazy(io.ComfyNode):
    """Asks for `chosen` of its two lazy inputs, then pads."""

    @classmethod
    def define_schema(cls):
        return schema("TestLazy", io.AnyType.Input("a", lazy=True, optional=True),
                      io.AnyType.Input("b", lazy=True, optional=True),
                      io.Combo.Input("chosen", options=["a", "b"], default="a", optional=True))

    @classmethod
    def check_lazy_status(cls, chosen="a", **inputs):
        return [chosen] if inputs.get(chosen) is None else []

    @classmethod
    def execute(cls, value=None, seed=0, a=None, b=None, chosen="a"):
        return result([pad(seed)], {"a": a, "b": b}[chosen])


NODES = [TestPad, TestFail, TestSlow, TestAsync, TestLazy]
