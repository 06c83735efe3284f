"""fp4-fp8-for-torch-mps on the software device, as it is on a Mac, where torch loads it after MPS's own kernels.

Four things of a Mac are not on the software device, and it asks for them:

* It calls what is below its `copy_`: PyTorch's native one, which in a build for Linux knows no MPS.
* It gives kernels an int64 where they read a uint, which holds the same number; the software device refuses that.
* Its source has a character that is not ASCII, in a comment; ours may have none.
* Its tables in `constant` memory end in NAN, which the software device's front end takes for no constant.
"""
import importlib
import re

import torch

PACKAGE = "fp4_fp8_for_torch_mps"
NAN = {"f": "as_type<float>(0x7fc00000u)", "h": "as_type<half>(ushort(0x7e00))"}

_below = torch.library.Library("aten", "IMPL")


class Narrow:
    """A shader library of which kernels are given every int as 32 bits."""

    def __init__(self, library):
        self._library = library

    def __getattr__(self, name):
        kernel = getattr(self._library, name)

        def launch(*arguments, **options):
            numbers = {at: "int32" for at, value in enumerate(arguments) if isinstance(value, int)}
            return kernel(*arguments, arg_casts=numbers, **options)

        return launch


def load():
    """Load it. The device is there already, with kernels of its own."""
    native, host = (torch.library.get_kernel("aten::copy_", key) for key in ("MPS", "CPU"))

    def copy_(keyset, self, src, non_blocking=False):
        src = src if isinstance(src, torch.Tensor) else torch.tensor(src)
        kernel = native if "mps" in (self.device.type, src.device.type) else host
        return kernel.call_boxed(keyset, self, src, non_blocking)

    _below.impl("copy_", copy_, "CompositeExplicitAutograd", with_keyset=True, allow_override=True)
    importlib.import_module(PACKAGE)
    theirs = importlib.import_module(f"{PACKAGE}.fp8_mps_native")
    source = theirs._load_shader_source().encode("ascii", "replace").decode()
    theirs._lib = Narrow(torch.mps.compile_shader(re.sub(r"(?<=([fh]), )NAN,", lambda at: f"{NAN[at[1]]},", source)))
