"""Small random checkpoints in every FP8 format, and what goes with them: python -m fp8.checkpoints COMFYUI MODELS

Flux and Wan, 1 MB each, as ComfyUI's own model classes lay them out; their sizes are read from the file by ComfyUI's
detection. The weights of one family are the same in all its files, up to rounding.
"""
import json
import os
import subprocess
import sys
from pathlib import Path

FAMILIES = ("flux", "wan")
# How a file holds its weights: every tensor in FP8; ComfyUI's first scaled format; the current one.
KINDS = ("plain", "scaled", "quant")
DTYPES = ("e4m3fn", "e5m2")
LORA_RANK = 4
LAST = ("final_layer.", "head.")


def name(family, kind, dtype):
    return f"{family}_{kind}_{dtype}.safetensors"


def same(family, kind, dtype):
    """The file with the same weights that ComfyUI reads right by itself: of scaled_fp8 it takes e5m2 for e4m3fn."""
    return name(family, "quant" if (kind, dtype) == ("scaled", "e5m2") else kind, dtype)


def main(models):
    import torch

    vaes = {"flux": tiny_taesd(), "wan": tiny_wan_vae()}
    for family, vae in vaes.items():
        save(vae, models / "vae" / f"{family}_vae.safetensors")
    save(tiny_wan_vae(dim=32), models / "vae" / "wan_wide_vae.safetensors")
    for family, model in {"flux": flux, "wan": wan}.items():
        weights = drawn(model().state_dict())
        save(lora(weights), models / "loras" / f"{family}_lora.safetensors")
        for dtype in DTYPES:
            for kind in KINDS:
                tensors = as_kind(weights, kind, getattr(torch, f"float8_{dtype}"))
                save(tensors, models / "diffusion_models" / name(family, kind, dtype))
                whole = {f"model.diffusion_model.{key}": value for key, value in tensors.items()}
                whole |= {f"vae.{key}": value for key, value in vaes[family].items()}
                save(whole, models / "checkpoints" / name(family, kind, dtype))


def save(tensors, target):
    from safetensors.torch import save_file

    target.parent.mkdir(parents=True, exist_ok=True)
    save_file({key: value.contiguous() for key, value in tensors.items()}, target)


def flux(text=64, pooled=32):
    """text, pooled: the widths of what a text encoder makes."""
    import comfy.ops
    import torch
    from comfy.ldm.flux.model import Flux

    return Flux(image_model="flux", in_channels=16, out_channels=16, vec_in_dim=pooled, context_in_dim=text,
                hidden_size=128, mlp_ratio=4.0, num_heads=1, depth=1, depth_single_blocks=1, axes_dim=[16, 56, 56],
                theta=10000, patch_size=2, qkv_bias=True, guidance_embed=True, txt_ids_dims=[], dtype=torch.float32,
                device="cpu", operations=comfy.ops.disable_weight_init)


def wan():
    import comfy.ops
    import torch
    from comfy.ldm.wan.model import WanModel

    return WanModel(model_type="t2v", dim=128, ffn_dim=256, num_heads=1, num_layers=1, in_dim=16, out_dim=16,
                    text_dim=4096, freq_dim=256, dtype=torch.float32, device="cpu",
                    operations=comfy.ops.disable_weight_init)


def tiny_taesd(channels=16):
    from comfy.taesd.taesd import TAESD

    shape = TAESD(latent_channels=channels).state_dict()
    own = {key: value for key, value in shape.items() if key.startswith("vae_")}  # a scale and a shift, set by it
    return fanned(shape, gain=0.7) | own


def tiny_wan_vae(dim=8):
    """dim: channels at the picture's size, with which the memory of a decode grows."""
    from comfy.ldm.wan.vae import WanVAE

    shape = WanVAE(dim=dim, z_dim=16, dim_mult=[1, 2, 4, 4], num_res_blocks=2, attn_scales=[],
                   temperal_downsample=[False, True, True], image_channels=3, conv_out_channels=3, dropout=0.0)
    return fanned(shape.state_dict())


def fanned(shapes, gain=1.0):
    """A VAE's weights, which keep the signal's size: normal over the square root of what they add up. gain: inside
    the residual branches."""
    import torch

    generator, found = torch.Generator().manual_seed(0), {}
    for key, value in shapes.items():
        if value.ndim > 1:
            size = gain if ".conv." in key else 1.0
            found[key] = torch.randn(value.shape, generator=generator) * size * value[0].numel() ** -0.5
        else:
            found[key] = torch.ones_like(value) if "gamma" in key else torch.zeros_like(value)
    return found


def drawn(shapes, size=0.05):
    """A model's weights: normal of this size, of the last layer less, so that latents stay within a VAE's range; norms
    near one. Small, so that what bf16 rounds off in one block is not the next block's to enlarge."""
    import torch

    generator, found = torch.Generator().manual_seed(0), {}
    for key, value in shapes.items():
        found[key] = torch.randn(value.shape, generator=generator) * (0.3 * size if key.startswith(LAST) else size)
        if found[key].ndim == 1 and key.endswith((".weight", ".scale")):  # a norm's
            found[key] += 1
    return found


def quantised(key, value):
    """Whether this is a matrix of a model's or text encoder's blocks, by the names they have in its family."""
    inside = "blocks." in key or "encoder.layers." in key or key.startswith(("layers.", "noise_refiner.",
                                                                             "context_refiner."))
    return value.ndim == 2 and key.endswith(".weight") and inside


def as_kind(weights, kind, fp8):
    import torch

    if kind == "plain":
        return {key: value.to(fp8) for key, value in weights.items()}
    found = {"scaled_fp8": torch.zeros(0, dtype=fp8)} if kind == "scaled" else {}
    for key, value in weights.items():
        if not quantised(key, value):
            found[key] = value.to(torch.bfloat16)
            continue
        scale = value.abs().max() / torch.finfo(fp8).max
        found[key] = (value / scale).to(fp8)
        layer = key.removesuffix(".weight")
        if kind == "scaled":
            found[f"{layer}.scale_weight"] = scale
        else:
            found[f"{layer}.weight_scale"] = scale
            conf = json.dumps({"format": str(fp8).removeprefix("torch.")})
            found[f"{layer}.comfy_quant"] = torch.tensor(list(conf.encode()), dtype=torch.uint8)
    return found


def lora(weights):
    """A LoRA of rank 4 on every layer of the blocks that is quantised, somewhat larger than the weights: it shows."""
    import torch

    generator, found = torch.Generator().manual_seed(1), {}
    for key, value in weights.items():
        if quantised(key, value):
            layer = f"diffusion_model.{key.removesuffix('.weight')}"
            found[f"{layer}.lora_up.weight"] = torch.randn(value.shape[0], LORA_RANK, generator=generator)
            found[f"{layer}.lora_down.weight"] = torch.randn(LORA_RANK, value.shape[1], generator=generator) * 0.03
            found[f"{layer}.alpha"] = torch.tensor(float(LORA_RANK))
    return found


def make(module, comfyui, models, *more):
    """`python -m fp8.<module> COMFYUI MODELS ...`: in a process of its own, since importing ComfyUI takes one over.
    Raises RuntimeError if it fails."""
    command = [sys.executable, "-m", f"fp8.{module}", os.path.abspath(comfyui), str(models), *more]
    done = subprocess.run(command, capture_output=True, text=True, cwd=Path(__file__).parents[1])
    if done.returncode:
        raise RuntimeError(done.stderr[-4000:])


def enter(comfyui):
    """Let this process be that ComfyUI's, on the CPU."""
    sys.path[0] = comfyui
    sys.argv = ["main.py", "--cpu"]
    os.chdir(comfyui)
    import comfy.options

    comfy.options.enable_args_parsing()


if __name__ == "__main__":
    folder = Path(sys.argv[2]).resolve()
    enter(sys.argv[1])
    main(folder)
