"""What stands for the files that example_workflows/FP8 model to a picture.json names, small, with random weights:
python -m fp8.example_models COMFYUI MODELS"""
import sys
from pathlib import Path

# Name in the workflow -> name of the stand-in. Both text encoders become CLIP-L: the small Flux takes its width.
FILES = {"flux1-dev.safetensors": "flux_of_clip.safetensors", "clip_l.safetensors": "clip_l_of_flux.safetensors",
         "t5xxl_fp8_e4m3fn_scaled.safetensors": "none", "ae.safetensors": "ae_of_flux.safetensors"}  # fmt: skip


def main(models):
    """A Flux in bfloat16, to be quantised, and CLIP-L in FP8."""
    from . import checkpoints, text

    encoder = text.clip()
    width = encoder["text_model.final_layer_norm.weight"].numel()
    flux = checkpoints.drawn(checkpoints.flux(text=width, pooled=width).state_dict())
    for folder, name, tensors in (
        ("diffusion_models", "flux1-dev.safetensors", {key: value.bfloat16() for key, value in flux.items()}),
        ("text_encoders", "clip_l.safetensors", text.in_kind(encoder, "quant", "e4m3fn")),
        ("vae", "ae.safetensors", checkpoints.tiny_taesd()),
    ):
        checkpoints.save(tensors, models / folder / FILES[name])


if __name__ == "__main__":
    from .checkpoints import enter

    target = Path(sys.argv[2]).resolve()
    enter(sys.argv[1])
    main(target)
