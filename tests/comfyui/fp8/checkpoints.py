"""Small random checkpoints in every FP8 format, and what goes with them: python checkpoints.py COMFYUI_DIR MODELS_DIR

Flux and Wan, 1 MB each, as ComfyUI's own model classes lay them out; their sizes are read from the file by ComfyUI's
detection. The weights of one family are the same in all its files, up to rounding. CLIP-L is of its real size (123 MB
in FP8). Two more have a size that ComfyUI does not take from the file, and are left out:

* Qwen-Image: comfy/ldm/qwen_image/model.py gives the transformer num_attention_heads = 24, attention_head_dim = 128 and
  joint_attention_dim = 3584, and model_detection.py reads just `dit_config["in_channels"] =` and
  `dit_config["num_layers"] =` from a file: 340 M parameters in one layer.
* Z-Image: model_detection.py, `elif dit_config["dim"] == 3840:  # Z image`, then `dit_config["n_heads"] = 30`: 177 M
  parameters a layer, and four refiner layers besides.
"""
import json
import os
import sys
from pathlib import Path

FAMILIES = ("flux", "wan")
# How a file holds its weights: every tensor in FP8; ComfyUI's first scaled format; the current one.
KINDS = ("plain", "scaled", "quant")
DTYPES = ("e4m3fn", "e5m2")
CLIPS = (("plain", "e4m3fn"), ("quant", "e4m3fn"), ("quant", "e5m2"))
LORA_RANK = 4
LAST = ("final_layer.", "head.")


def name(family, kind, dtype):
    return f"{family}_{kind}_{dtype}.safetensors"


def main(models):
    import torch
    from safetensors.torch import save_file

    def save(tensors, *path, metadata=None):
        target = models.joinpath(*path)
        target.parent.mkdir(parents=True, exist_ok=True)
        save_file({key: value.contiguous() for key, value in tensors.items()}, target, metadata=metadata)

    vaes = {"flux": tiny_taesd(), "wan": tiny_wan_vae()}
    for family, vae in vaes.items():
        save(vae, "vae", f"{family}_vae.safetensors")
    text = clip_l()
    for kind, dtype in CLIPS:
        save(as_kind(text, kind, getattr(torch, f"float8_{dtype}")), "text_encoders", clip_file(kind, dtype))
    for family, model in {"flux": flux, "wan": wan}.items():
        weights = drawn(model().state_dict())
        save(lora(weights), "loras", f"{family}_lora.safetensors")
        for dtype in DTYPES:
            for kind in KINDS:
                tensors = as_kind(weights, kind, getattr(torch, f"float8_{dtype}"))
                save(tensors, "diffusion_models", name(family, kind, dtype))
                whole = {f"model.diffusion_model.{key}": value for key, value in tensors.items()}
                whole |= {f"vae.{key}": value for key, value in vaes[family].items()}
                save(whole, "checkpoints", name(family, kind, dtype))


def clip_l():
    """CLIP-L with random weights, whole: ComfyUI takes its size from comfy/sd1_clip_config.json, not from the file
    ("hidden_size": 768, "num_hidden_layers": 12, "vocab_size": 49408)."""
    import comfy.ops
    import torch
    from comfy.clip_model import CLIPTextModel

    config = json.loads(Path("comfy/sd1_clip_config.json").read_text())
    model = CLIPTextModel(config, torch.float32, "cpu", comfy.ops.disable_weight_init)
    weights = drawn(model.state_dict(), 0.02)
    return {key: torch.ones_like(value) if "norm" in key and key.endswith(".weight") else value
            for key, value in weights.items() if "position_ids" not in key}


def flux():
    import comfy.ops
    import torch
    from comfy.ldm.flux.model import Flux

    return Flux(image_model="flux", in_channels=16, out_channels=16, vec_in_dim=32, context_in_dim=64, hidden_size=128,
                mlp_ratio=4.0, num_heads=1, depth=1, depth_single_blocks=1, axes_dim=[16, 56, 56], theta=10000,
                patch_size=2, qkv_bias=True, guidance_embed=True, txt_ids_dims=[], dtype=torch.float32, device="cpu",
                operations=comfy.ops.disable_weight_init)


def wan():
    import comfy.ops
    import torch
    from comfy.ldm.wan.model import WanModel

    return WanModel(model_type="t2v", dim=128, ffn_dim=256, num_heads=1, num_layers=1, in_dim=16, out_dim=16,
                    text_dim=4096, freq_dim=256, dtype=torch.float32, device="cpu",
                    operations=comfy.ops.disable_weight_init)


def clip_file(kind, dtype):
    return f"clip_l_{kind}_{dtype}.safetensors"


def tiny_taesd():
    from comfy.taesd.taesd import TAESD

    shape = TAESD(latent_channels=16).state_dict()
    own = {key: value for key, value in shape.items() if key.startswith("vae_")}  # a scale and a shift, set by it
    return fanned(shape, gain=0.7) | own


def tiny_wan_vae():
    from comfy.ldm.wan.vae import WanVAE

    shape = WanVAE(dim=8, z_dim=16, dim_mult=[1, 2, 4, 4], num_res_blocks=2, attn_scales=[],
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
        if "norm" in key and key.endswith((".weight", ".scale")):
            found[key] += 1
    return found


def quantised(key, value):
    return value.ndim == 2 and key.endswith(".weight") and ("blocks" in key or "encoder.layers" in key)


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


def make(comfyui, models):
    """This file in a process of its own, since importing ComfyUI takes one over. Raises RuntimeError if it fails."""
    import subprocess

    done = subprocess.run([sys.executable, __file__, str(comfyui), str(models)], capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(done.stderr[-4000:])


if __name__ == "__main__":
    comfyui, folder = Path(sys.argv[1]).resolve(), Path(sys.argv[2]).resolve()
    sys.path[0] = str(comfyui)
    sys.argv = ["main.py", "--cpu"]
    os.chdir(comfyui)
    import comfy.options

    comfy.options.enable_args_parsing()
    main(folder)
