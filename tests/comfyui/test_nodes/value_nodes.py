"""Values of every kind, right ones and wrong ones."""
import torch
from comfy_api.latest import io


def _image(*shape, **more):
    return torch.rand(*shape, 3, generator=torch.Generator().manual_seed(0), **more)


VALUES = {
    "mask": lambda: _image(2, 16, 16)[..., 0],
    "latent": lambda: {"samples": torch.randn(1, 4, 8, 8, generator=torch.Generator().manual_seed(0))},
    "embedding": lambda: torch.randn(1, 7, 32, 5, 6, generator=torch.Generator().manual_seed(0)),
    "empty image": lambda: _image(0, 64, 64),
    "integer image": lambda: (_image(2, 64, 64) * 255).to(torch.uint8),
    "NaN image": lambda: _image(2, 64, 64) * torch.nan,
    "empty latent": lambda: {"samples": torch.zeros(0, 4, 8, 8)},
    "NaN latent": lambda: {"samples": torch.full((1, 4, 8, 8), torch.nan)},
}


class TestTensor(io.ComfyNode):
    """The value of a kind; `add` is added to its numbers."""

    @classmethod
    def define_schema(cls):
        return io.Schema(node_id="TestTensor", category="test",
                         inputs=[io.Combo.Input("kind", options=list(VALUES)),
                                 io.Float.Input("add", default=0.0, optional=True)],
                         outputs=[io.AnyType.Output("value")])

    @classmethod
    def execute(cls, kind, add=0.0):
        value = VALUES[kind]()
        if add:
            value = {"samples": value["samples"] + add} if isinstance(value, dict) else value + add
        return io.NodeOutput(value)


NODES = [TestTensor]
