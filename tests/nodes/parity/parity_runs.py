"""Parity runs of the toys: what the tests of a run and of what it needs share."""
from importlib import import_module

import torch
from pack import NAME, load

load()
vae_parity = import_module(f"{NAME}.nodes.parity.vae")
Tolerances = import_module(f"{NAME}.nodes.parity.verdict").Tolerances
Request, Hooks = vae_parity.Request, vae_parity.Hooks

GIB = 1 << 30


def image(batch=1, height=64, width=96):
    return torch.rand(batch, height, width, 3, generator=torch.Generator().manual_seed(1))


def latent(*shape):
    return {"samples": torch.randn(shape or (1, 8, 16, 24), generator=torch.Generator().manual_seed(1))}


def parity(vae, thing, operation="decode", region="whole", size=32, frames=0, hooks=None, available=8 * GIB, **asked):
    request = Request(operation, region, size, frames)
    return vae_parity.parity(vae, thing, request, Tolerances(**asked), hooks, available=lambda: available)
