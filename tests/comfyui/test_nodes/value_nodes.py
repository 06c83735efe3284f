"""Values of every kind, right ones and wrong ones."""
import torch
from comfy_api.latest import io


def _image(*shape, **more):
    return torch.rand(*shape, 3, generator=torch.Generator().manual_seed(0), **more)


def _with(image, **places):
    """The image with a NaN in so many of its first numbers, and an infinity in so many of its last."""
    numbers = image.view(-1)
    numbers[: places.get("nan", 0)] = torch.nan
    numbers[len(numbers) - places.get("inf", 0) :] = torch.inf
    return image


VALUES = {
    "mask": lambda: _image(2, 16, 16)[..., 0],
    "latent": lambda: {"samples": torch.randn(1, 4, 8, 8, generator=torch.Generator().manual_seed(0))},
    "embedding": lambda: torch.randn(1, 7, 32, 5, 6, generator=torch.Generator().manual_seed(0)),
    "empty image": lambda: _image(0, 64, 64),
    "integer image": lambda: (_image(2, 64, 64) * 255).to(torch.uint8),
    "integer picture": lambda: (_image(64, 64) * 255).to(torch.uint8),
    "image": lambda: _image(2, 64, 64),
    "image, 5 NaN, 3 inf": lambda: _with(_image(2, 64, 64), nan=5, inf=3),
    "image, 2 NaN": lambda: _with(_image(2, 64, 64), nan=2),
    "empty mask": lambda: torch.zeros(0, 16, 16),
    "empty tensor": lambda: torch.zeros(1, 7, 0, 5, 6),
    "NaN mask": lambda: torch.full((2, 16, 16), torch.nan),
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
