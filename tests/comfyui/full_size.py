"""ComfyUI's Wan 2.2 VAE in full size with random weights.

usage: python full_size.py COMFYUI_DIR make FILE
       python full_size.py COMFYUI_DIR encode FILE RESULT

`make` writes a checkpoint that ComfyUI's VAELoader takes. `encode` encodes TestPicture's picture on the CPU in float32.
"""
import subprocess
import sys

SIZE = 1024
CONFIG = {"dim": 160, "z_dim": 48, "dim_mult": [1, 2, 4, 4], "num_res_blocks": 2, "attn_scales": [],
          "temperal_downsample": [False, True, True], "dropout": 0.0}
# Small residual branches: the shortcuts, which are what gets padded, carry most of the signal.
GAIN = 0.3


def run(comfyui, *arguments):
    """This file in a process of its own, since importing ComfyUI takes one over. Raises RuntimeError if it fails."""
    command = [sys.executable, __file__, str(comfyui), *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(done.stderr[-4000:])


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
            weights[name] = torch.randn(value.shape, generator=generator) * GAIN * value[0].numel() ** -0.5
        else:
            weights[name] = torch.zeros_like(value)
    save_file(weights, file)


def encode(file, result):
    import torch
    from safetensors.torch import load_file

    vae = build()
    vae.load_state_dict(load_file(file))
    picture = torch.rand(1, SIZE, SIZE, 3, generator=torch.Generator().manual_seed(0))
    with torch.inference_mode():
        torch.save(vae.encode(picture.movedim(-1, 0)[None] * 2 - 1), result)


if __name__ == "__main__":
    comfyui, action, *files = sys.argv[1:]
    sys.path.insert(0, comfyui)
    sys.argv = ["main.py", "--cpu"]
    import comfy.options

    comfy.options.enable_args_parsing()
    {"make": make, "encode": encode}[action](*files)
