"""A node that keeps Metal memory outside torch's pool by an op that no kernel of the pack takes over; what records."""
import threading

import torch
from aiohttp import web
from comfy.model_management import get_torch_device
from comfy_api.latest import io
from server import PromptServer

from .routes import pack, submodule


class TestOutside(io.ComfyNode):
    """Calls stock's pad behind the pack's back: `shapes` shapes, each of which keeps memory."""

    @classmethod
    def define_schema(cls):
        return io.Schema(node_id="TestOutside", category="test", inputs=[io.Int.Input("shapes", default=4)],
                         outputs=[io.AnyType.Output("shapes")], not_idempotent=True)

    @classmethod
    def fingerprint_inputs(cls, **_):
        return float("nan")

    @classmethod
    def execute(cls, shapes):
        stock = pack().metal_kernels._installation.patcher.overrides["constant_pad_nd"].stock
        keys = torch._C.DispatchKeySet(torch._C.DispatchKey.MPS)
        for number in range(shapes):
            stock(keys, torch.zeros(1, 1, 2 + number, 256, 260).to(get_torch_device()), [0, 0, 0, 0, 1, 0])
        return io.NodeOutput(shapes)


def recording():
    """How many threads read memory now, and whether patched calls are watched."""
    return {"threads": sum(thread.name == "metal memory" for thread in threading.enumerate()),
            "watched": submodule("metal_kernels.switches")._watcher is not None,
            "session": submodule("nodes.memory.meter").meter.session()[0] is not None}


def add_routes():
    @PromptServer.instance.routes.get("/test/memory")
    async def get_memory(request):
        return web.json_response(recording())


NODES = [TestOutside]
