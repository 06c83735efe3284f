"""The smallest files of models whose size ComfyUI does not take from the file:
python -m fp8.larger COMFYUI MODELS FAMILY KIND DTYPE

* sd1: a Stable Diffusion 1 checkpoint with its text encoder, 150 MB. Its UNet's levels, blocks and depths are counted
  in the file, one of each here; comfy/supported_models.py asks for `"model_channels": 320`. CLIP-L is whole (text.py).
* qwen: Qwen-Image with one layer, 0.4 GB. model_detection.py reads just `dit_config["in_channels"] =` and
  `dit_config["num_layers"] =`; the rest stands in QwenImageTransformer2DModel: `attention_head_dim: int = 128`,
  `num_attention_heads: int = 24`, `joint_attention_dim: int = 3584`.
* zimage: Z-Image with one layer, 1.0 GB. It is Z-Image for `elif dit_config["dim"] == 3840:  # Z image`, with
  `dit_config["n_heads"] = 30`; four more layers are refiners, by NextDiT's `n_refiner_layers: int = 2`.
"""
import sys
from pathlib import Path

from . import checkpoints, text

FAMILIES = ("qwen", "zimage")


def name(family, kind, dtype):
    return f"{family}_{kind}_{dtype}.safetensors"


def main(models, family, kind, dtype):
    weights = checkpoints.drawn(shapes(family), 0.02)
    if family != "sd1":
        checkpoints.save(text.in_kind(weights, kind, dtype), models / "diffusion_models" / name(family, kind, dtype))
        return
    parts = {"model.diffusion_model.": weights, "cond_stage_model.transformer.": text.clip()}
    tensors = {prefix + key: value for prefix, part in parts.items()
               for key, value in text.in_kind(part, kind, dtype).items()}
    tensors |= {f"first_stage_model.{key}": value for key, value in checkpoints.tiny_taesd(4).items()}
    checkpoints.save(tensors, models / "checkpoints" / name(family, kind, dtype))
    lora = checkpoints.lora(weights) | text.lora()
    checkpoints.save(lora, models / "loras" / "sd1_lora.safetensors")


def shapes(family):
    """name -> a tensor of its shape, which takes no memory."""
    import comfy.ops
    import torch

    common = dict(dtype=torch.float32, device="meta", operations=comfy.ops.disable_weight_init)
    if family == "sd1":
        from comfy.ldm.modules.diffusionmodules.openaimodel import UNetModel

        return UNetModel(image_size=32, in_channels=4, out_channels=4, model_channels=320, num_res_blocks=[1],
                         channel_mult=[1], transformer_depth=[1], transformer_depth_output=[1, 1],
                         transformer_depth_middle=1, use_linear_in_transformer=False, context_dim=768, num_heads=8,
                         use_spatial_transformer=True, legacy=False, **common).state_dict()
    if family == "qwen":
        from comfy.ldm.qwen_image.model import QwenImageTransformer2DModel

        return QwenImageTransformer2DModel(num_layers=1, **common).state_dict()
    from comfy.ldm.lumina.model import NextDiT

    return NextDiT(patch_size=2, in_channels=16, dim=3840, n_layers=1, n_heads=30, n_kv_heads=30, qk_norm=True,
                   ffn_dim_multiplier=8 / 3, cap_feat_dim=2560, axes_dims=[32, 48, 48], axes_lens=[1536, 512, 512],
                   rope_theta=256.0, z_image_modulation=True, time_scale=1000.0, pad_tokens_multiple=32,
                   **common).state_dict()


def offer(comfyui, folder, servers, family, kind, dtype):
    """The name of the file of this kind, made in `folder` if it is not there, which all these servers find."""
    file = name(family, kind, dtype)
    if not list(folder.rglob(file)):
        checkpoints.make("larger", comfyui, folder, family, kind, dtype)
    for server in servers:
        for made in (*folder.rglob(file), *folder.rglob(f"{family}_lora.safetensors")):
            target = server.folder / "models" / made.relative_to(folder)
            target.parent.mkdir(parents=True, exist_ok=True)
            if not target.exists():
                target.symlink_to(made)
    return file


if __name__ == "__main__":
    comfyui, models, *what = sys.argv[1:]
    checkpoints.enter(comfyui)
    main(Path(models), *what)
