"""Which aten ops the device takes beyond those that have a CPU kernel, and which it must not have."""

COMPOSITE = [
    # PyTorch registers an MPS kernel for these although they are composite elsewhere (native_functions.yaml).
    "aten::repeat",
    # Composite kernels that choose their backend through a C++ stub, which knows no software device.
    "aten::convolution", "aten::convolution_backward", "aten::_convolution",
]
"""Composite ops that fall back to the CPU as a whole."""

ABSENT = [
    # No PyTorch has an MPS kernel for these: the error must be the dispatcher's own.
    "aten::_scaled_mm", "aten::_scaled_grouped_mm", "aten::_scaled_grouped_mm_v2",
    # Only some versions have one: softmetal.faults adds it.
    "aten::_scaled_mm_v2", "aten::_grouped_mm",
]
"""Ops that get no kernel when the device is installed."""
