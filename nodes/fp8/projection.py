"""CLIP-L and CLIP-G held quantised: what ComfyUI has to be told, and what it then leaves open."""

MIXED = {"quantization_metadata": {"mixed_ops": True}}  # CLIP-L and -G don't look at their file


def project(encoder):
    """Give CLIP the identity for a projection that its file doesn't have: most don't, and it is computed all the same.

    ComfyUI's quantised Linear starts without a weight, where its plain one starts with whatever is in memory.
    """
    import torch

    for name, module in encoder.named_modules():
        if name.endswith("text_projection") and getattr(module, "weight", module) is None:
            like = next(other for other in encoder.parameters() if other.dtype.itemsize == 2)
            eye = torch.eye(module.out_features, module.in_features, dtype=like.dtype, device=like.device)
            module.weight = torch.nn.Parameter(eye, requires_grad=False)
