"""ComfyUI's Wan 2.2 VAE in full size with random weights.

usage: python full_size.py COMFYUI_DIR make FILE
       python full_size.py COMFYUI_DIR encode FILE RESULT
       python full_size.py COMFYUI_DIR count

`make` writes a checkpoint that ComfyUI's VAELoader takes. `encode` encodes `picture` on the CPU in float32. `count`
prints as JSON, for videos of some sizes, every constant pad that an encode makes; it computes nothing.

Which size shows the fault: stock loses a rank-5 pad's data once 65536 elements lie behind the outermost axis that is
really padded (a pad of nothing but zeros copies). The encoder halves height and width when it makes patches, and again
in its first block, which pads nothing; only its second block pads time, by one frame, where it is given a single frame.
So that pad has (height / 4) x (width / 4) elements a frame: 16384 at 512x512, 65536 at 1024x1024. (Qwen-Image 2.1's
VAE, which has the same blocks and makes no patches, gets there at 512x512.) Later frames come in fours: nothing to pad.
"""
import importlib.util
import json
import subprocess
import sys
from pathlib import Path

SIZE = 1024
VIDEOS = ((1, 512, 512), (5, 512, 512), (9, 512, 512), (1, 1008, 1024), (1, 1024, 1024), (5, 1024, 1024))
CONFIG = {"dim": 160, "z_dim": 48, "dim_mult": [1, 2, 4, 4], "num_res_blocks": 2, "attn_scales": [],
          "temperal_downsample": [False, True, True], "dropout": 0.0}
# Of the residual branches: small, so that the shortcuts, which are what gets padded, carry the signal.
GAIN = 0.1


def run(comfyui, *arguments):
    """This file in a process of its own, since importing ComfyUI takes one over. Raises RuntimeError if it fails."""
    command = [sys.executable, __file__, str(comfyui), *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(done.stderr[-4000:])
    return done.stdout


def picture(size=SIZE):
    """[1, size, size, 3] in 0 to 1: a dark field above a bright one.

    Plain, so that few values make up its latent: of noise the latent's range is nine times its standard deviation, and
    PSNR 19 dB even with all of the signal lost; of this one less than six times.
    """
    import torch

    fields = torch.empty(1, size, size, 3)
    fields[:, : size // 2], fields[:, size // 2 :] = torch.tensor([0.1, 0.2, 0.3]), torch.tensor([0.9, 0.7, 0.5])
    return fields


def build():
    from comfy.ldm.wan.vae2_2 import WanVAE

    return WanVAE(**CONFIG).eval()  # ComfyUI leaves the weights uninitialised


def make(file):
    import torch
    from safetensors.torch import save_file

    generator = torch.Generator().manual_seed(0)
    weights = {}
    for name, value in build().state_dict().items():
        if "gamma" in name:
            weights[name] = torch.ones_like(value)
        elif value.ndim > 1:
            gain = GAIN if ".residual." in name or ".resample." in name else 1
            weights[name] = torch.randn(value.shape, generator=generator) * gain * value[0].numel() ** -0.5
        else:
            weights[name] = torch.zeros_like(value)
    save_file(weights, file)


def encode(file, result):
    import torch
    from safetensors.torch import load_file

    vae = build()
    vae.load_state_dict(load_file(file))
    with torch.inference_mode():
        torch.save(vae.encode(picture().movedim(-1, 0)[None] * 2 - 1), result)


def count():
    import torch

    pads = _demo_pads()
    with torch.device("meta"), torch.inference_mode():
        vae, found = build(), []
        vae.encoder.middle[1] = torch.nn.Identity()  # attention: pads nothing, and asks the device for its free memory
        for frames, height, width in VIDEOS:
            with pads.PadCounter() as counter:
                vae.encode(torch.empty(1, 3, frames, height, width))
            found.append({"video": [frames, height, width], **counter.as_dict(),
                          "shapes": sorted(counter.shapes)})
    print(json.dumps(found))


def _demo_pads():
    """tests/demo/pads.py; tests/ itself must not be on the path here, it has folders called `nodes` and `comfyui`."""
    path = Path(__file__).resolve().parents[1] / "demo" / "pads.py"
    spec = importlib.util.spec_from_file_location("demo_pads", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


if __name__ == "__main__":
    comfyui, action, *files = sys.argv[1:]
    sys.path.insert(0, comfyui)
    sys.argv = ["main.py", "--cpu"]
    import comfy.options

    comfy.options.enable_args_parsing()
    {"make": make, "encode": encode, "count": count}[action](*files)
