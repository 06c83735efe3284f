"""Small VAE-shaped objects with ComfyUI's surface: encode, decode, its attributes, and a few kilobytes of weights."""
import torch
from torch import nn


class Nested:
    """As comfy.nested_tensor.NestedTensor: several tensors that say they are one."""

    is_nested = True

    def __init__(self, *tensors):
        self.tensors = tensors

    def unbind(self):
        return list(self.tensors)


class Model(nn.Module):
    """Two levels of convolution each way: 8 latent channels, a cell is 4 x 4 pixels.

    `fault` is added to whatever this model computes in a dtype other than float32, standing for a device that is wrong.
    """

    def __init__(self, channels=3, fault=0.0):
        super().__init__()
        self.encoder = nn.Sequential(nn.Conv2d(channels, 8, 4, 4), nn.Tanh(), nn.Conv2d(8, 16, 3, padding=1))
        self.decoder = nn.Sequential(
            nn.Conv2d(8, 16, 3, padding=1),
            nn.SiLU(),
            nn.Upsample(scale_factor=4),
            nn.Conv2d(16, channels, 3, padding=1),
        )
        self.register_buffer("scale", torch.tensor(0.5))
        self.fault = fault
        generator = torch.Generator().manual_seed(0)
        for weight in self.parameters():
            weight.data = torch.randn(weight.shape, generator=generator) * 0.2

    def encode(self, x):
        mean, spread = self.encoder(x).chunk(2, 1)
        return self._faulty(mean + 0.1 * spread.exp().clamp(max=2) * torch.randn_like(mean))

    def decode(self, z):
        return self._faulty(self.decoder(z * self.scale))

    def _faulty(self, x):
        return x if x.dtype == torch.float32 else x + self.fault


class ToyVAE:
    """As comfy.sd.VAE: `device`, `vae_dtype`, `process_*`, memory formulas, pixels [B, H, W, C] in 0..1."""

    latent_dim = 2
    latent_channels = 8
    downscale_ratio = upscale_ratio = 4

    def __init__(self, dtype=torch.bfloat16, **model):
        self.first_stage_model = Model(**model).to(dtype).eval()
        self.device = self.output_device = torch.device("cpu")
        self.vae_dtype = dtype
        self.process_input = lambda image: image * 2 - 1
        self.process_output = lambda image: image.add_(1).div_(2).clamp_(0, 1)
        self.memory_used_encode = lambda shape, dtype: 100 * shape[2] * shape[3] * dtype.itemsize
        self.memory_used_decode = lambda shape, dtype: 100 * shape[2] * shape[3] * 16 * dtype.itemsize
        self.calls = []

    def encode(self, pixels):
        self.calls.append(("encode", tuple(pixels.shape)))
        height, width = (n // 4 * 4 for n in pixels.shape[1:3])
        x = self.process_input(pixels[:, :height, :width, :3].movedim(-1, 1)).to(self.device, self.vae_dtype)
        return self.first_stage_model.encode(x).float()

    def decode(self, latent):
        self.calls.append(("decode", tuple(latent.shape)))
        out = self.first_stage_model.decode(latent.to(self.device, self.vae_dtype)).float()
        return self.process_output(out).movedim(1, -1)


class VideoVAE(ToyVAE):
    """A batch of images is one video; latents are [B, C, T, H, W], four frames each."""

    latent_dim = 3

    def encode(self, pixels):
        self.calls.append(("encode", tuple(pixels.shape)))
        x = self.process_input(pixels.movedim(-1, 1)).to(self.vae_dtype)
        return self.first_stage_model.encode(x).float().movedim(0, 1)[None, :, ::4]

    def decode(self, latent):
        self.calls.append(("decode", tuple(latent.shape)))
        frames = latent[0].movedim(0, 1).repeat_interleave(4, 0).to(self.vae_dtype)
        return self.process_output(self.first_stage_model.decode(frames).float()).movedim(1, -1)[None]
