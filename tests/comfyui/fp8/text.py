"""CLIP-L in FP8, with random weights. ComfyUI takes its size from comfy/sd1_clip_config.json and not from the file
("hidden_size": 768, "num_hidden_layers": 12, "vocab_size": 49408), so it is whole: 123 MB at one byte a weight. CLIP-G
the same: 694 MB."""
import torch

from .checkpoints import as_kind, save

SIZES = {"l": (768, 3072, 12), "g": (1280, 5120, 32)}  # width, the width inside, layers
WORDS, LENGTH = 49408, 77
LORA_RANK = 4
# name -> the layers that it is for. To merge one for all of them takes the software device half a minute.
LORAS = {"clip_l_lora.safetensors": range(12), "clip_l_two_layers_lora.safetensors": (0, 6)}
LORA, SHORT_LORA = LORAS


def matrices(size="l"):
    """name in a layer -> shape."""
    width, inner, _ = SIZES[size]
    return {**{f"self_attn.{part}_proj": (width, width) for part in ("q", "k", "v", "out")},
            "mlp.fc1": (inner, width), "mlp.fc2": (width, inner)}


def in_layers(size="l"):
    """Weights in the layers' matrices: what scaled and comfy_quant files quantise."""
    return SIZES[size][2] * sum(rows * columns for rows, columns in matrices(size).values())


def clip(size="l", seed=0):
    """name -> float32 weight, small enough that the layers don't run away."""
    generator, (width, _, layers) = torch.Generator().manual_seed(seed), SIZES[size]

    def draw(*shape):
        return torch.randn(shape, generator=generator) * (0.02 if len(shape) > 1 else 0.01)

    found = {"text_model.embeddings.token_embedding.weight": draw(WORDS, width),
             "text_model.embeddings.position_embedding.weight": draw(LENGTH, width)}
    for layer in range(layers):
        at = f"text_model.encoder.layers.{layer}"
        for part, shape in matrices(size).items():
            found |= {f"{at}.{part}.weight": draw(*shape), f"{at}.{part}.bias": draw(shape[0])}
        for norm in "layer_norm1", "layer_norm2":
            found |= {f"{at}.{norm}.weight": draw(width) + 1, f"{at}.{norm}.bias": draw(width)}
    if size == "g":
        found["text_projection.weight"] = draw(width, width)
    return found | {"text_model.final_layer_norm.weight": draw(width) + 1,
                    "text_model.final_layer_norm.bias": draw(width)}


def lora(name=LORA):
    """A LoRA of rank 4 on every matrix of its layers, under the names that trainers give them; it shows."""
    generator, found = torch.Generator().manual_seed(1), {}
    for layer in LORAS[name]:
        for part, (rows, columns) in matrices().items():
            at = f"lora_te_text_model_encoder_layers_{layer}_{part.replace('.', '_')}"
            found[f"{at}.lora_up.weight"] = torch.randn(rows, LORA_RANK, generator=generator)
            found[f"{at}.lora_down.weight"] = torch.randn(LORA_RANK, columns, generator=generator) * 0.01
            found[f"{at}.alpha"] = torch.tensor(float(LORA_RANK))
    return found


def in_kind(weights, kind, dtype):
    """The weights as a file of this kind holds them; "wide": the values of the scaled ones in float16."""
    fp8 = getattr(torch, f"float8_{dtype}")
    if kind != "wide":
        return as_kind(weights, kind, fp8)
    held = as_kind(weights, "quant", fp8)
    return {key: (value.float() * held.get(f"{key}_scale", 1.0)).half() for key, value in held.items()
            if not key.endswith((".weight_scale", ".comfy_quant"))}


def offer(servers, kind, dtype, seed=0, size="l"):
    """The name of the file of this kind, which all these servers find from now on. Made once for each."""
    name = f"clip_{size}_{kind}_{dtype}_{seed}.safetensors"
    for server in servers:
        target = server.folder / "models" / "text_encoders" / name
        if not target.exists():
            save(in_kind(clip(size, seed), kind, dtype), target)
    return name


def offer_lora(servers, name=LORA):
    for server in servers:
        target = server.folder / "models" / "loras" / name
        if not target.exists():
            save(lora(name), target)
