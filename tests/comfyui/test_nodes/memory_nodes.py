"""Nodes that make Metal memory outside torch's pool grow, with and without the pack's knowledge; what records now."""
import itertools
import threading

import torch
from aiohttp import web
from comfy.model_management import get_torch_device
from comfy_api.latest import io
from server import PromptServer

from .routes import pack, submodule

_heights = itertools.count(256)


def fresh():
    """A tensor of a shape that was not padded before: stock keeps memory for each."""
    return torch.zeros(1, 1, 2, next(_heights), 260, device=get_torch_device())


class TestShapes(io.ComfyNode):
    """Pads fresh shapes, in every prompt; then fails if it is told to."""

    @classmethod
    def define_schema(cls):
        return io.Schema(node_id="TestShapes", category="test", not_idempotent=True,
                         inputs=[io.AnyType.Input("value", optional=True), io.Int.Input("shapes", default=4),
                                 io.Boolean.Input("fail", default=False, optional=True)],
                         outputs=[io.AnyType.Output("value")], is_output_node=True)

    @classmethod
    def fingerprint_inputs(cls, **_):
        return float("nan")

    @classmethod
    def execute(cls, shapes, value=None, fail=False):
        for _ in range(shapes):
            torch.nn.functional.pad(fresh(), (0, 0, 0, 0, 1, 0))
        if fail:
            raise RuntimeError("this node always fails")
        return io.NodeOutput(value)


class TestOutside(TestShapes):
    """The same by stock's kernel, called behind the pack's back: as if another op kept memory."""

    @classmethod
    def define_schema(cls):
        schema = super().define_schema()
        schema.node_id = "TestOutside"
        return schema

    @classmethod
    def execute(cls, shapes, value=None, fail=False):
        stock = pack().metal_kernels._installation.patcher.overrides["constant_pad_nd"].stock
        for _ in range(shapes):
            stock(torch._C.DispatchKeySet(torch._C.DispatchKey.MPS), fresh(), [0, 0, 0, 0, 1, 0])
        return io.NodeOutput(value)


class TestHungry(io.ComfyNode):
    """Keeps some memory by a pad, then asks for more than torch allows itself."""

    @classmethod
    def define_schema(cls):
        return io.Schema(node_id="TestHungry", category="test", inputs=[io.AnyType.Input("value", optional=True)],
                         outputs=[io.AnyType.Output("value")], is_output_node=True, not_idempotent=True)

    @classmethod
    def execute(cls, value=None):
        torch.nn.functional.pad(fresh(), (0, 0, 0, 0, 1, 0))
        torch.mps.set_per_process_memory_fraction(2**30 / torch.mps.recommended_max_memory())
        try:
            return io.NodeOutput(torch.empty(2**31, dtype=torch.uint8, device=get_torch_device()))
        finally:
            torch.mps.set_per_process_memory_fraction(1.7)  # torch's own default


def recording():
    """How many threads read memory now, and whether patched calls are watched."""
    return {"threads": sum(thread.name == "metal memory" for thread in threading.enumerate()),
            "watched": submodule("metal_kernels.switches")._watcher is not None,
            "session": submodule("nodes.memory.meter").meter.session()[0] is not None}


def add_routes():
    @PromptServer.instance.routes.get("/test/memory")
    async def get_memory(request):
        return web.json_response(recording())


NODES = [TestShapes, TestOutside, TestHungry]
