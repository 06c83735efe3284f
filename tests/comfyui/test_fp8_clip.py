"""Text encoders: CLIP-L in FP8, whose size is fixed by ComfyUI's sd1_clip_config.json, on the device and on the CPU."""
import pytest
import torch
from fp8.harness import free, psnr
from graphs import node
from safetensors.torch import save_file

pytestmark = [pytest.mark.comfyui, pytest.mark.timeout(900)]

WIDTH, INNER, LAYERS, WORDS, LENGTH = 768, 3072, 12, 49408, 77
E4M3 = torch.float8_e4m3fn


def clip_l():
    """Random weights under CLIP-L's names, small enough that twelve layers don't run away."""
    generator = torch.Generator().manual_seed(0)

    def draw(*shape):
        return torch.randn(shape, generator=generator) * (0.02 if len(shape) > 1 else 0.01)

    found = {"text_model.embeddings.token_embedding.weight": draw(WORDS, WIDTH),
             "text_model.embeddings.position_embedding.weight": draw(LENGTH, WIDTH)}  # fmt: skip
    for layer in range(LAYERS):
        at = f"text_model.encoder.layers.{layer}"
        for part, shape in {"self_attn.q_proj": (WIDTH, WIDTH), "self_attn.k_proj": (WIDTH, WIDTH),
                            "self_attn.v_proj": (WIDTH, WIDTH), "self_attn.out_proj": (WIDTH, WIDTH),
                            "mlp.fc1": (INNER, WIDTH), "mlp.fc2": (WIDTH, INNER)}.items():  # fmt: skip
            found |= {f"{at}.{part}.weight": draw(*shape), f"{at}.{part}.bias": draw(shape[0])}
        for norm in "layer_norm1", "layer_norm2":
            found |= {f"{at}.{norm}.weight": draw(WIDTH) + 1, f"{at}.{norm}.bias": draw(WIDTH)}
    return found | {"text_model.final_layer_norm.weight": draw(WIDTH) + 1,
                    "text_model.final_layer_norm.bias": draw(WIDTH)}  # fmt: skip


def scaled(tensors):
    """comfy_quant, the matrices of the layers with a scale that is far from 1."""
    found = {}
    for key, value in tensors.items():
        if value.ndim == 2 and ".layers." in key:
            scale = value.abs().max() / 448
            found[key], found[f"{key}_scale"] = (value / scale).to(E4M3), scale
            text = b'{"format": "float8_e4m3fn"}'
            found[key.replace(".weight", ".comfy_quant")] = torch.tensor(list(text), dtype=torch.uint8)
        else:
            found[key] = value.half()
    return found


@pytest.fixture(scope="module")
def encoders(small_mac, on_the_cpu):
    """Files clip_plain, clip_scaled, clip_wide on both servers; the last has the values of the second."""
    weights = clip_l()
    quantised = scaled(weights)
    wide = {key: (value.float() * quantised[f"{key}_scale"] if f"{key}_scale" in quantised else value.float()).half()
            for key, value in quantised.items() if key in weights}  # fmt: skip
    files = {"plain": {key: value.to(E4M3) for key, value in weights.items()}, "scaled": quantised, "wide": wide,
             "wide_plain": {key: value.to(E4M3).half() for key, value in weights.items()}}  # fmt: skip
    for server in (small_mac, on_the_cpu.server):
        folder = server.folder / "models" / "text_encoders"
        folder.mkdir(parents=True, exist_ok=True)
        for kind, tensors in files.items():
            save_file(tensors, folder / f"clip_{kind}.safetensors")
    return {kind: f"clip_{kind}.safetensors" for kind in files}


def embedded(server, loader, tag):
    """(the embedding of a prompt, what TestHeld and the loader show)."""
    graph = {"clip": loader, "text": node("CLIPTextEncode", clip=("clip", 0), text="a photo of a small cat"),
             "flat": node("TestTextEmbedding", conditioning=("text", 0)),
             "save": node("TestSave", value=("flat", 0), name=tag),
             "held": node("TestHeld", model=("clip", 0), after=("text", 0))}  # fmt: skip
    outputs = server.run(graph, 600)["outputs"]
    shown = outputs.get("clip", {}).get("text", [""])[0]
    return torch.load(server.folder / "output" / f"{tag}.pt"), outputs["held"]["held"][0], shown


@pytest.fixture(scope="module")
def reference(on_the_cpu, encoders):
    """What stock makes of the wide file with the same values, on the CPU."""

    def make(kind):
        load = node("CLIPLoader", clip_name=encoders[kind], type="stable_diffusion", device="cpu")
        return embedded(on_the_cpu.server, load, f"clip {kind}")[0]

    return make


@pytest.mark.parametrize("device, place", [("device", "mps"), ("cpu", "cpu")])
@pytest.mark.parametrize("kind, same", [("scaled", "wide"), ("plain", "wide_plain")])
def test_it_runs_where_it_is_told_to_and_every_scale_counts(small_mac, encoders, reference, device, place, kind, same):
    free(small_mac)
    load = node("MetalFP8LoadCLIP", clip_name=encoders[kind], type="stable_diffusion", device=device)
    found, held, text = embedded(small_mac, load, f"clip {kind} {device}")
    assert held["load_device"] == place and f"  runs on   {place}" in text, text
    in_fp8 = sum(size for name, size in held["bytes"][place].items() if name.startswith("float8"))
    assert in_fp8 >= LAYERS * (4 * WIDTH * WIDTH + 2 * WIDTH * INNER), "one byte a weight, where it runs"
    assert psnr(found, reference(same)) >= 40


def test_quantised_on_load(small_mac, encoders, reference):
    free(small_mac)
    load = node("MetalFP8LoadCLIP", clip_name=encoders["wide"], type="stable_diffusion", quantize="per row")
    found, held, text = embedded(small_mac, load, "clip quantised")
    assert "72 float8_e4m3fn per row" in text and "quantised on load: 72 layers" in text, text
    assert psnr(found, reference("wide")) >= 25
