"""The kinds of text encoders, of which ComfyUI has more, and the loaders that take a path. Tests put results there."""
from enum import Enum


class CLIPType(Enum):
    STABLE_DIFFUSION = 1
    SD3 = 3
    FLUX = 6
    WAN = 13


def load_diffusion_model(unet_path, model_options=None, disable_dynamic=False):
    raise NotImplementedError


def load_clip(ckpt_paths, embedding_directory=None, clip_type=CLIPType.STABLE_DIFFUSION, model_options=None):
    raise NotImplementedError


def load_checkpoint_guess_config(ckpt_path, output_vae=True, output_clip=True, output_model=True, model_options=None,
                                 te_model_options=None):
    raise NotImplementedError
