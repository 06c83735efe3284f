"""What ComfyUI made of a state dict: which layers hold quantised weights, and which lost their scale on the way."""

# What files put before the names of a diffusion model's layers; ComfyUI takes it off.
PREFIXES = ("model.diffusion_model.", "model.model.", "net.", "model.", "")
LEAST = 3  # parts of a name that say which layer it is


def formats(modules):
    """{format: number of layers} of every module with a weight: comfy_quant's names, " per row" added; dtypes else."""
    counts = {}
    for root in modules:
        for module in root.modules():
            weight = getattr(module, "weight", None)
            if weight is None or not hasattr(weight, "dtype") or "weight" not in module._parameters:
                continue
            name = str(weight.dtype).removeprefix("torch.")
            if hasattr(weight, "storage_dtype"):
                scale = getattr(weight.params, "scale", None)
                rows = name_of(module, weight).startswith("float8") and scale is not None and scale.numel() > 1
                name = name_of(module, weight) + (" per row" if rows else "")
            counts[name] = counts.get(name, 0) + 1
    return dict(sorted(counts.items(), key=lambda pair: (-pair[1], pair[0])))


def name_of(module, weight):
    """The format of a quantised weight in comfy_quant's words."""
    return getattr(module, "quant_format", None) or str(weight.storage_dtype).removeprefix("torch.")


def quantized(modules):
    """The names of the modules whose weight is quantised."""
    return [name for root in modules for name, module in root.named_modules()
            if hasattr(getattr(module, "weight", None), "storage_dtype")]  # fmt: skip


def lost(modules, expected):
    """Those of the layers `expected` (names as in the file) that are not quantised in the model.

    ComfyUI takes a prefix off a name, and puts its own before it. So a layer is found when its name, with or without
    such a prefix, or an end of it of three parts or more, is an end of a quantised module's name.
    """
    ends = {end for name in quantized(modules) for end in _ends(name, 1)}
    return [name for name in expected if not ends & (_ends(name, LEAST) | without_prefix(name))]


def without_prefix(name):
    """The names that a layer of a file may have in the model."""
    return {name.removeprefix(prefix) for prefix in PREFIXES}


def _ends(name, least):
    parts = name.split(".")
    return {".".join(parts[at:]) for at in range(len(parts)) if at == 0 or len(parts) - at >= least}
