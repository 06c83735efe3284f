"""A tiny random diffusers AutoencoderKLWan in an object shaped like ComfyUI's VAE, and a node that saves tensors."""
import importlib.util
import sys
from pathlib import Path

import folder_paths
import torch
from aiohttp import web
from comfy.model_management import get_torch_device
from comfy_api.latest import io
from server import PromptServer

TESTS = Path(__file__).resolve().parents[2]


def demo(module):
    """A module of tests/demo, which is not on the path here: the same model and the same count of pads."""
    return ours(TESTS / "demo" / f"{module}.py")


def ours(file):
    """A module of the tests by its file."""
    name = f"metal_kernels_test_{file.stem}"
    if name not in sys.modules:
        spec = importlib.util.spec_from_file_location(name, file)
        sys.modules[name] = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(sys.modules[name])
    return sys.modules[name]


class TinyWanVAE:
    """What ComfyUI's VAE nodes use of a VAE. Pictures are [T, H, W, 3] in 0 to 1, latents [1, 4, T', H / 8, W / 8]."""

    latent_channels, latent_dim = 4, 3

    def __init__(self):
        self.device, self.vae_dtype = get_torch_device(), torch.float32
        self.first_stage_model, self.latent = demo("workload").Workload().build(self.device)
        self.pads = None

    def spacial_compression_encode(self):
        return 8

    spacial_compression_decode = spacial_compression_encode

    def decode(self, samples):
        with demo("pads").PadCounter() as self.pads:
            # Latents made for another VAE (an example's empty one) have more channels.
            video = self.first_stage_model.decode(samples[:, :4].to(self.device), return_dict=False)[0]
        return video.cpu().movedim(1, -1).add(1).div(2).clamp(0, 1)

    def encode(self, pixels):
        video = pixels[..., :3].movedim(-1, 0)[None] * 2 - 1
        with demo("pads").PadCounter() as self.pads:
            return self.first_stage_model.encode(video.to(self.device)).latent_dist.mode().cpu()


class TestTinyVAE(io.ComfyNode):
    """encoder, decoder: False for a VAE that was saved without one."""

    @classmethod
    def define_schema(cls):
        return io.Schema(node_id="TestTinyVAE", category="test",
                         inputs=[io.Boolean.Input(part, default=True, optional=True)
                                 for part in ("encoder", "decoder")],
                         outputs=[io.Vae.Output("vae"), io.Latent.Output("latent")])

    @classmethod
    def execute(cls, **parts):
        vae = TinyWanVAE()
        for part, there in parts.items():
            if not there:
                delattr(vae.first_stage_model, part)
        return io.NodeOutput(vae, {"samples": vae.latent.cpu()})


class TestPads(io.ComfyNode):
    """Shows the pads of the VAE's last call; `after` is what it made."""

    @classmethod
    def define_schema(cls):
        return io.Schema(node_id="TestPads", category="test", inputs=[io.Vae.Input("vae"), io.AnyType.Input("after")],
                         outputs=[], is_output_node=True, not_idempotent=True)

    @classmethod
    def execute(cls, vae, after):
        return io.NodeOutput(ui={"pads": [vae.pads.as_dict()]})


class TestSave(io.ComfyNode):
    """Saves a tensor (or a latent's samples) as output/NAME.pt."""

    @classmethod
    def define_schema(cls):
        return io.Schema(node_id="TestSave", category="test",
                         inputs=[io.AnyType.Input("value"), io.String.Input("name", default="value")],
                         outputs=[], is_output_node=True)

    @classmethod
    def execute(cls, value, name):
        tensor = value["samples"] if isinstance(value, dict) else value
        folder = Path(folder_paths.get_output_directory())
        folder.mkdir(parents=True, exist_ok=True)
        torch.save(tensor.cpu(), folder / f"{name}.pt")
        return io.NodeOutput(ui={"saved": [name]})


class TestPicture(io.ComfyNode):
    """One square picture, plain, the same everywhere."""

    @classmethod
    def define_schema(cls):
        return io.Schema(node_id="TestPicture", category="test", inputs=[io.Int.Input("size", default=512, max=8192)],
                         outputs=[io.Image.Output("picture")])

    @classmethod
    def execute(cls, size):
        return io.NodeOutput(ours(TESTS / "comfyui" / "full_size.py").picture(size))


def add_routes():
    stock, calls = torch.nn.functional.pad, []

    def counting(input, pad, *args, **kwargs):
        out = stock(input, pad, *args, **kwargs)
        calls.append((tuple(pad), tuple(out.shape)))
        return out

    @PromptServer.instance.routes.post("/test/pads")
    async def pads(request):
        """{"count": true} counts every F.pad of the process from now on, false ends that; the answer is what was
        counted."""
        torch.nn.functional.pad = counting if (await request.json())["count"] else stock
        rule = demo("pads")
        found = {"calls": len(calls), "faulty_by_rule": sum(rule.is_faulty(shape, pad) for pad, shape in calls),
                 "past_threshold": sum(len(shape) >= 5 and rule.inner_extent(shape, pad) >= rule.THRESHOLD
                                       for pad, shape in calls)}
        calls.clear()
        return web.json_response(found)


NODES = [TestTinyVAE, TestPads, TestSave, TestPicture]
