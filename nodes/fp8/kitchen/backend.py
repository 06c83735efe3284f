"""The backend "metal" of comfy-kitchen: its FP8 functions on mps, by the kernel `fp8`.

Registered through comfy-kitchen's public registry, ahead of the others. A function of ours that can't run (the kernel
is switched off or has failed) or is not to (another pack has put its own in eager's place) refuses in its constraints,
and comfy-kitchen goes on to its next backend. A function that is not ours is not registered: it stays where it was.
"""
import functools
import inspect

import torch

from . import private, rules

NAME = "metal"


class Backend:
    """What comfy-kitchen calls. Arguments as its own functions have them, results bit for bit as eager's but for what
    FUNCTIONS.md lists: the bits of a NaN, and MXFP8 at the ends of its scales' range.

    kernels  the library (`metal_kernels`).
    eager    the module of comfy-kitchen's backend "eager", which runs what ours can't.
    """

    def __init__(self, kernels, eager):
        self._fp8, self._eager = kernels.fp8, eager
        # What this comfy-kitchen has and ours can stand for.
        self.functions = tuple(name for name in rules.FITS if _known(eager, name))
        self.entries = {name: kernels.entry("fp8", f"comfy_kitchen::{name}") for name in self.functions}

    def held(self):
        """function -> the module of another pack that has taken eager's place in it since comfy-kitchen was loaded."""
        return {name: _stranger(getattr(self._eager, name)) for name in self.functions
                if _stranger(getattr(self._eager, name))}

    def ready(self, name, kwargs):
        """None, or why the kernel takes no such call now; then the call is counted as passed on."""
        dtype, shape = kwargs[_FIRST[name]].dtype, kwargs[_FIRST[name]].shape
        stranger = _stranger(getattr(self._eager, name))
        if stranger:
            reason = f"{stranger} has put its own in eager's place"
        elif self.entries[name].ready(_format(name, kwargs)):
            return None
        else:
            reason = "the kernel fp8 is not in use: {}: {}".format(*self.entries[name].switch.state)
        self.entries[name].passed(dtype, shape)
        return reason

    def dequantize_per_tensor_fp8(self, x, scale, output_type=torch.bfloat16):
        return self._call("dequantize_per_tensor_fp8", self._fp8.dequantize,
                          (x, scale, output_type), dict(x=x, scale=scale, output_type=output_type))

    def quantize_per_tensor_fp8(self, x, scale, output_type=torch.float8_e4m3fn):
        per = "tensor" if scale.numel() == 1 else "row"
        return self._call("quantize_per_tensor_fp8", lambda *of: self._fp8.quantize(*of, scale=scale)[0],
                          (x, output_type, per), dict(x=x, scale=scale, output_type=output_type))

    def stochastic_rounding_fp8(self, x, rng, output_type=torch.float8_e4m3fn):
        return self._call("stochastic_rounding_fp8", self._fp8.stochastic_rounding,
                          (x, rng, output_type), dict(x=x, rng=rng, output_type=output_type))

    def quantize_mxfp8(self, x, pad_32x=False):
        return self._call("quantize_mxfp8", lambda: self._fp8.quantize(_padded(x) if pad_32x else x, per="block32"),
                          (), dict(x=x, pad_32x=pad_32x))

    def dequantize_mxfp8(self, qx, block_scales, output_type=torch.bfloat16):
        return self._call("dequantize_mxfp8", self._fp8.dequantize, (qx, block_scales, output_type),
                          dict(qx=qx, block_scales=block_scales, output_type=output_type))

    def dequantize_nvfp4(self, qx, per_tensor_scale, block_scales, output_type=torch.bfloat16, hi_first=True):
        return self._call("dequantize_nvfp4", self._fp8.dequantize_nvfp4,
                          (qx, per_tensor_scale, block_scales, output_type, hi_first),
                          dict(qx=qx, per_tensor_scale=per_tensor_scale, block_scales=block_scales,
                               output_type=output_type, hi_first=hi_first))

    def _call(self, name, run, arguments, kwargs):
        return self.entries[name].call(
            _format(name, kwargs), kwargs[_FIRST[name]].shape,
            lambda: run(*arguments), lambda: getattr(self._eager, name)(**kwargs),
        )


# The argument that stands for a call in the counters.
_FIRST = {name: "qx" if name in ("dequantize_mxfp8", "dequantize_nvfp4") else "x" for name in rules.FITS}


def _format(name, kwargs):
    """The FP8 dtype of a call: which self-check must have passed."""
    if name.startswith("dequantize_per_tensor"):
        return kwargs["x"].dtype
    return kwargs["output_type"] if name in _TO_FP8 else torch.float8_e4m3fn


_TO_FP8 = ("quantize_per_tensor_fp8", "stochastic_rounding_fp8")


def _padded(x):
    rows, columns = (-size % 32 for size in x.shape)
    return torch.nn.functional.pad(x, (0, columns, 0, rows)) if rows or columns else x


def _known(eager, name):
    """Whether this comfy-kitchen has the function, and no parameter in it that ours does not know."""
    theirs, ours = getattr(eager, name, None), getattr(Backend, name)
    return theirs is not None and set(inspect.signature(theirs).parameters) <= set(inspect.signature(ours).parameters)


def _stranger(function):
    """The module that a function was written in, "" if that is comfy-kitchen's. functools.wraps hides nothing."""
    module = getattr(function, "__globals__", {}).get("__name__", "")
    return "" if module.split(".")[0] == "comfy_kitchen" else module or repr(function)


def register(kernels, registry, constraints):
    """Put the backend at the head of comfy-kitchen's priorities. Returns it, and a function that takes it out again.

    constraints   the module comfy_kitchen.constraints.
    """
    before = private.priority(registry)
    backend = Backend(kernels, private.backend(registry, "eager"))
    capabilities = {
        name: rules.constraints_for(
            name, registry.get_constraints("eager", name), functools.partial(backend.ready, name),
            constraints.ValidationResult,
        )
        for name in backend.functions
    }
    registry.register(NAME, backend, capabilities)
    registry.set_priority([NAME, *before])

    def unregister():
        if private.backend(registry, NAME) is not backend:  # somebody has registered another one in its place
            return
        private.forget_backend(registry, NAME)
        registry.set_priority([name for name in private.priority(registry) if name != NAME])

    return backend, unregister
