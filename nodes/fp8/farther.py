"""Scales that do not lie beside their weight: a level deeper or higher, or with the layer's name in their own.

A quantiser of its own below the layer (`a.weight_quantizer._scale`), a value wrapped once more
(`a.weight_scale.value`), the layer's name and an underscore (`qkv_weight_scale` beside `qkv.weight`), or a tree of
scales beside the model's (`scales.a`). And factors beside a weight that are not called a scale but named after it
(`weight_multiplier`).
"""
WORDS = ("scale", "scaling", "absmax", "amax")  # one of them is in the name of every factor that is known in files
# What a tree of scales is called.
TREES = ("scale", "scales", "weight_scale", "weight_scales", "scale_weight", "scale_inv", "weight_scale_inv")
OTHER_FACTORS = ("SCB",)  # bitsandbytes'
# Parameters of a model that are called a scale, and are none of a stored weight.
PARAMETERS = ("logit_scale", "layer_scale", "head_scale", "skip_scale", "residual_scale")
# Scales of what a layer takes or gives, or of a cache of it: beside a weight that has its own.
OF_VALUES = ("input_", "output_", "q_", "k_", "v_", "kv_", "prob_")


def is_scale(part):
    """Whether a part of a name says that it is a scale, of whatever."""
    return any(word in part.lower() for word in WORDS)


def is_no_weights(name, layer):
    """Whether a scale below a layer is by its name one of values that go through it: no weight is wrong without it."""
    rest = name.removeprefix(f"{layer}.").lower()
    return name.startswith(f"{layer}.") and rest.startswith(OF_VALUES) and "weight" not in rest


def owner(name, weights):
    """The weight that a tensor may scale, as far as its name can tell; None for every other tensor.

    weights  {layer: name of its weight}, of layers that are no use without a scale.
    """
    parts = name.split(".")
    for at in range(len(parts) - 1, 0, -1):
        layer, rest = ".".join(parts[:at]), parts[at:]
        named_after = rest[0].lower().startswith("weight_") or rest[0] in OTHER_FACTORS
        if layer in weights and name != weights[layer] and (named_after or any(map(is_scale, rest))):
            return weights[layer]
    if not any(map(is_scale, parts)):
        return None
    folder, _, last = name.rpartition(".")
    for at, letter in enumerate(last):
        layer = f"{folder}.{last[:at]}" if folder else last[:at]
        if letter == "_" and layer in weights and is_scale(last[at:]):
            return weights[layer]
    layer = ".".join(part for part in parts if part.lower() not in TREES).removesuffix(".weight")
    return weights.get(layer) if name not in weights.values() else None
