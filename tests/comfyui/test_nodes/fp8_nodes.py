"""Nodes for FP8 models: conditioning without a text encoder, what a model holds, what a text encoder made."""
import comfy.model_management
import torch
from comfy_api.latest import io


class TestConditioning(io.ComfyNode):
    """Random text embeddings, the same everywhere: [1, 8, width], and what Flux wants besides."""

    @classmethod
    def define_schema(cls):
        return io.Schema(node_id="TestConditioning", category="test",
                         inputs=[io.Int.Input("width", default=64, max=8192)],
                         outputs=[io.Conditioning.Output("conditioning")])

    @classmethod
    def execute(cls, width):
        generator = torch.Generator().manual_seed(5)
        pooled = torch.randn(1, 32, generator=generator)
        return io.NodeOutput([[torch.randn(1, 8, width, generator=generator),
                               {"pooled_output": pooled, "guidance": 3.5}]])


def held(patcher):
    """device -> dtype -> bytes of a model's weights as they are now; FP8 in a QuantizedTensor counts as its values."""
    found = {}
    for tensor in patcher.model.state_dict().values() if hasattr(patcher.model, "state_dict") else ():
        devices = found.setdefault(tensor.device.type, {})
        name = str(tensor.dtype).removeprefix("torch.")
        devices[name] = devices.get(name, 0) + tensor.numel() * tensor.element_size()
    return found


class TestHeld(io.ComfyNode):
    """Shows what a MODEL, CLIP or VAE holds, and where; `after` is what it made."""

    @classmethod
    def define_schema(cls):
        return io.Schema(node_id="TestHeld", category="test", is_output_node=True, not_idempotent=True,
                         inputs=[io.AnyType.Input("model"), io.AnyType.Input("after", optional=True)], outputs=[])

    @classmethod
    def fingerprint_inputs(cls, **_):
        return float("nan")  # what it held before says nothing

    @classmethod
    def execute(cls, model, after=None):
        patcher = getattr(model, "patcher", model)
        loaded = any(each.model is patcher or each.model.is_clone(patcher)
                     for each in comfy.model_management.current_loaded_models if each.model is not None)
        return io.NodeOutput(ui={"held": [{"bytes": held(patcher), "loaded": loaded,
                                           "load_device": patcher.load_device.type}]})


class TestTextEmbedding(io.ComfyNode):
    """The tensor in a conditioning, and its pooled one, as one flat tensor for TestSave."""

    @classmethod
    def define_schema(cls):
        return io.Schema(node_id="TestTextEmbedding", category="test",
                         inputs=[io.Conditioning.Input("conditioning")], outputs=[io.AnyType.Output("embedding")])

    @classmethod
    def execute(cls, conditioning):
        (text, more), = conditioning
        pooled = more.get("pooled_output")
        parts = [text] if pooled is None else [text, pooled]
        return io.NodeOutput(torch.cat([part.float().flatten().cpu() for part in parts]))


class TestNoise(io.ComfyNode):
    """The latent with normal numbers in it, the same everywhere."""

    @classmethod
    def define_schema(cls):
        return io.Schema(node_id="TestNoise", category="test", inputs=[io.Latent.Input("samples")],
                         outputs=[io.Latent.Output("latent")])

    @classmethod
    def execute(cls, samples):
        shape = samples["samples"].shape
        return io.NodeOutput({"samples": torch.randn(shape, generator=torch.Generator().manual_seed(3))})


NODES = [TestConditioning, TestHeld, TestTextEmbedding, TestNoise]


def add_routes():
    """POST /test/memory {"limit": bytes} limits what Metal gives the process; {"recommended": bytes} is what torch says
    that Metal recommends, null the truth again; {"device": bytes} is a device for which Metal recommends that, without
    torch's own limit, so that it swaps, null the one that it was; {"recognise": false} takes the pack's hook on is_oom
    out, true puts it in again. The answer: what the process has now, and how many models ComfyUI has loaded."""
    import importlib

    from aiohttp import web
    from server import PromptServer

    from .routes import device, submodule

    recommended = torch.mps.recommended_max_memory
    own = recommended() if torch.backends.mps.is_available() else 0

    @PromptServer.instance.routes.post("/test/memory")
    async def memory(request):
        body = await request.json()
        if "recommended" in body:
            given = body["recommended"]
            torch.mps.recommended_max_memory = recommended if given is None else lambda: given
        if "device" in body:
            metal = importlib.import_module("softmetal.device.build").load()
            metal.set_recommended_max_memory(body["device"] or own)
            metal.set_memory_fraction(0.0 if body["device"] else 1.7)  # 0: no limit
        if "limit" in body:
            torch.mps.set_per_process_memory_fraction(body["limit"] / torch.mps.recommended_max_memory())
        if "recognise" in body:
            hook = submodule("nodes.memory.out_of_memory")
            (hook.install if body["recognise"] else hook.uninstall)()
        return web.json_response({"memory": device().memory(), "peaks": device().memory_peaks(), "recommended": own,
                                  "loaded": len(comfy.model_management.current_loaded_models)})
