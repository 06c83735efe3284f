"""How an operation of the table is called through metal_kernels.ops: its arguments -> the function's."""

import torch

# operation -> (name of the function in ops, arguments of the operation -> arguments and keywords of the function)
CALLS = {
    "pad": ("pad", lambda x, pad, value: ((x, pad, value), {})),
    "softmax": ("softmax", lambda x, dim, half: ((x, dim, half), {})),
    "log_softmax": ("log_softmax", lambda x, dim, half: ((x, dim, half), {})),
    "softmax_backward": ("softmax_backward", lambda *arguments: (arguments, {})),
    "log_softmax_backward": ("log_softmax_backward", lambda *arguments: (arguments, {})),
    "linear": ("linear", lambda *arguments: (arguments, {})),
    "grouped_mm": ("grouped_mm", lambda *arguments: (arguments, {})),
    "topk": ("topk", lambda x, k, dim, largest: ((x, k, largest), {})),
    "histc": ("histc", lambda *arguments: (arguments, {})),
    "fp8_encode": ("cast", lambda *arguments: (arguments, {})),
    "fp8_decode": ("cast", lambda *arguments: (arguments, {})),
    "fp8_linear": ("linear", lambda x, weight, scale, bias: ((x, weight, bias), {"scale": scale})),
    "fp8_scaled_linear": ("linear", lambda x, weight, scale, bias: ((x, weight, bias), {"scale": scale})),
    "scaled_mm": ("scaled_mm", lambda *arguments: (arguments, {})),
    "fp8_quantize": ("quantize_fp8", lambda *arguments: (arguments, {})),
    "fp8_dequantize": ("dequantize_fp8", lambda *arguments: (arguments, {})),
    "nvfp4_dequantize": ("dequantize_nvfp4", lambda *arguments: (arguments, {})),
    "fp8_stochastic_rounding": ("stochastic_rounding", lambda *arguments: (arguments, {})),
}
# Of the table, but no function of its own: the gradient of linear; the other schema of scaled_mm.
WITHOUT = {"fp8_linear_backward", "scaled_mm_v2"}


def call(ops, case, arguments):
    """The case's function, on arguments that lie wherever they are."""
    name, rearrange = CALLS[case.op]
    args, kwargs = rearrange(*arguments)
    return getattr(ops, name)(*args, **kwargs)


def outputs(result) -> tuple[torch.Tensor, ...]:
    return tuple(result) if isinstance(result, (tuple, list)) else (result,)
