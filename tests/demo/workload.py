"""The decode under test: diffusers' AutoencoderKLWan, the model family of the report, small and with random weights.

The feature maps reach 256x256, so that pads whose inner extent passes the fault's threshold really occur.
"""
from dataclasses import asdict, dataclass

SEED = 20


@dataclass(frozen=True)
class Workload:
    """Shapes of the model and of its latent (batch, channels, frames, height, width)."""

    base_dim: int = 16
    z_dim: int = 4
    dim_mult: tuple[int, ...] = (1, 1, 2, 2)
    num_res_blocks: int = 1
    latent: tuple[int, ...] = (1, 4, 2, 32, 32)
    seed: int = SEED

    def build(self, device):
        """(vae, latent) on `device`, from the same random numbers whatever the device is."""
        import torch
        from diffusers import AutoencoderKLWan
        from diffusers.utils import logging

        logging.set_verbosity_error()
        generator_state = torch.get_rng_state()
        torch.manual_seed(self.seed)
        try:
            vae = AutoencoderKLWan(
                base_dim=self.base_dim,
                z_dim=self.z_dim,
                dim_mult=list(self.dim_mult),
                num_res_blocks=self.num_res_blocks,
            )
            latent = torch.randn(self.latent)
        finally:
            torch.set_rng_state(generator_state)
        with torch.no_grad():
            # Random weights give a grey picture. Doubled, it fills its range of [-1, 1], and a wrong one shows.
            vae.decoder.conv_out.weight.mul_(2)
        return vae.eval().to(device), latent.to(device)

    def describe(self, vae, picture):
        """What the report says about the model."""
        return {
            "model": "diffusers AutoencoderKLWan, random weights",
            "parameters": sum(p.numel() for p in vae.parameters()),
            "dtype": "float32",
            **asdict(self),
            "picture": list(picture.shape),
        }


def decode(vae, latent):
    """The picture (batch, 3, frames, height, width), float32 in [-1, 1], on the latent's device."""
    import torch

    with torch.inference_mode():
        return vae.decode(latent, return_dict=False)[0]
