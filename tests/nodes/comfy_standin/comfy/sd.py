"""The kinds of text encoders, of which ComfyUI has more."""
from enum import Enum


class CLIPType(Enum):
    STABLE_DIFFUSION = 1
    SD3 = 3
    FLUX = 6
    WAN = 13
