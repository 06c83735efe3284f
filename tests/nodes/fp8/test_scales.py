"""No weight without its scale: every scale of a good file renamed, dropped or spoilt in turn; other formats' scales."""
import json

import pytest
import torch
from model_files import E4M3, E5M2, part, random, recognised, text, write

BOTH = pytest.mark.parametrize("strict", [True, False], ids=["ours", "stock"])
FNUZ, E5M2_FNUZ, E8M0 = torch.float8_e4m3fnuz, torch.float8_e5m2fnuz, torch.float8_e8m0fnu


@pytest.fixture(autouse=True)
def _pack(comfy_api):
    part("layers")


def refused(path, strict, says=""):
    with pytest.raises(ValueError) as caught:
        recognised(path, strict=strict)
    sentence = str(caught.value)
    assert says in sentence and "\n" not in sentence and type(caught.value).__name__ == "ModelFileError", sentence


def effective(path, strict):
    """{layer: what the recognised layers' weights come out as}."""
    _, mapped, layers = recognised(path, strict=strict)
    return {name: mapped.tensor(layer.weight).float() * (mapped.tensor(layer.scale).float() if layer.scale else 1.0)
            for name, layer in layers.items()}  # fmt: skip


KINDS = ("scaled_fp8", "comfy_quant", "metadata", "scales only", "rows")


def good(kind, prefix=""):
    """(tensors, metadata): two layers and what lies beside them."""
    scale, given = ("scale_weight", "scale_input") if kind == "scaled_fp8" else ("weight_scale", "input_scale")
    tensors = {f"{prefix}norm.weight": random(8).bfloat16(), f"{prefix}norm.scale": random(8).bfloat16(),
               f"{prefix}scale_shift_table": random(2, 8).bfloat16(), f"{prefix}b.bias": random(8).bfloat16()}
    config = {"format": "float8_e4m3fn"}
    for at, layer in enumerate(("a", "b")):
        rows = (8, 1) if kind == "rows" else ()
        tensors |= {f"{prefix}{layer}.weight": random(8, 16, seed=at).to(E4M3),
                    f"{prefix}{layer}.{scale}": torch.full(rows, 0.25 + at),
                    f"{prefix}{layer}.{given}": torch.tensor(0.5)}
        if kind == "comfy_quant":
            tensors[f"{prefix}{layer}.comfy_quant"] = text(config)
    if kind == "scaled_fp8":
        tensors[f"{prefix}scaled_fp8"] = torch.zeros(0).to(E4M3)
    metadata = {"_quantization_metadata": json.dumps({"layers": {f"{prefix}a": config, f"{prefix}b": config}})}
    return tensors, metadata if kind == "metadata" else None


def is_scale(name):
    return name.rpartition(".")[2] in ("weight_scale", "scale_weight")


@BOTH
@pytest.mark.parametrize("prefix", ["", "model.diffusion_model."])
@pytest.mark.parametrize("kind", KINDS)
def test_a_good_file_is_read(tmp_path, kind, prefix, strict):
    tensors, metadata = good(kind, prefix)
    found = effective(write(tmp_path, tensors, metadata), strict)
    assert set(found) == {f"{prefix}a", f"{prefix}b"}
    for at, layer in enumerate(("a", "b")):
        assert torch.equal(found[prefix + layer], tensors[f"{prefix}{layer}.weight"].float() * (0.25 + at))


NAMES = ("weight_scale_inv", "weight.scale", "scale", "weight_scale_2", "scale_inv", "scales", "input_scale",
         "scale_input", "wscale", "Weight_Scale", "weight_scales", "inv_scale")  # fmt: skip


@BOTH
@pytest.mark.parametrize("every", [False, True], ids=["one", "all"])
@pytest.mark.parametrize("kind", KINDS)
def test_scales_under_another_name(tmp_path, kind, every, strict):
    """DeepSeek's and Qwen's `weight_scale_inv`, `weight.scale` and others: refused, or used, never left out."""
    tensors, metadata = good(kind)
    for name in NAMES:
        renamed = {}
        for key, value in tensors.items():
            layer = key.rpartition(".")[0]
            hit = is_scale(key) and (every or layer == "a")
            renamed[f"{layer}.{name}" if hit else key] = value
        refused(write(tmp_path, renamed, metadata), strict)


FARTHER = ("{}.weight_quantizer._scale", "{}.weight_quantizer._amax", "{}.quant.scale", "{}.weight_scale.value",
           "{}.weight_scale.0", "{}.weight.scales.0", "{}.scale.value", "{}.scale.weight", "{}.weight_scale.weight",
           "{}_scale", "{}_weight_scale", "scales.{}", "weight_scales.{}", "scale.{}.weight", "{}.weight.scales",
           "{}.weight_multiplier", "{}.weight_factor", "{}.weight_s", "{}.SCB")  # fmt: skip


@BOTH
@pytest.mark.parametrize("place", FARTHER)
@pytest.mark.parametrize("layer", ["a", "blocks.0.attn.qkv"])
def test_scales_that_lie_elsewhere(tmp_path, layer, place, strict):
    """A level deeper or higher, with the layer's name in their own, or called otherwise but after the weight."""
    tensors = {f"{layer}.weight": random(8, 16).to(E4M3), "blocks.0.norm.weight": random(8).bfloat16()}
    refused(write(tmp_path, {**tensors, place.format(layer): torch.tensor(0.5)}), strict, f"{layer}.weight")
    wide = {**tensors, f"{layer}.weight": random(8, 16).bfloat16()}
    if ".weight" not in place:
        assert recognised(write(tmp_path, {**wide, place.format(layer): torch.tensor(0.5)}), strict=strict)[2] == {}


@BOTH
def test_scales_of_what_goes_through_a_layer(tmp_path, strict):
    """Of caches of keys and values, inputs and outputs, beside weights with scales of their own; parameters that are
    only called a scale."""
    tensors = {f"attn.{name}_proj.{ending}": value for name in "qkv" for ending, value in (
        ("weight", random(8, 16).to(E4M3)), ("weight_scale", torch.tensor(0.5)))}  # fmt: skip
    beside = ("q_proj.q_scale", "k_proj.k_scale", "v_proj.v_scale", "k_proj.output_scale", "v_proj.kv_scale",
              "q_proj.input_quantizer._amax", "k_proj.k_bmm_quantizer._amax", "q_proj.output_quantizer._scale")
    path = write(tmp_path, {**tensors, **{f"attn.{name}": torch.tensor(0.25) for name in beside}})
    assert set(recognised(path, strict=strict)[2]) == {"attn.q_proj", "attn.k_proj", "attn.v_proj"}
    for name in beside:
        unscaled = {"attn.q_proj.weight": tensors["attn.q_proj.weight"], f"attn.{name}": torch.tensor(0.25)}
        if name.startswith("q_proj"):
            refused(write(tmp_path, unscaled), strict, "attn.q_proj.weight")
    for name in ("q_proj.scale", "q_proj.weight_scale_inv", "q_proj.weight.scale", "k_proj_scale",
                 "q_proj.k_weight_scale"):  # fmt: skip
        refused(write(tmp_path, {**tensors, f"attn.{name}": torch.tensor(0.25)}), strict, "_proj.weight is")
    plain = {"a.weight": random(8, 16).to(E4M3), "attn.in_proj_weight": random(8, 16).to(E4M3)}
    named = ("logit_scale", "a.layer_scale", "attn.head_scale", "attn.logit_scale", "a.skip_scale",
             "layer_scale_1.gamma", "upscale.weight", "scale_embed.linear.weight", "scale_shift_table")
    path = write(tmp_path, {**plain, **{name: random(4).bfloat16() for name in named}})
    assert set(recognised(path, strict=strict)[2]) == {"a"}


@BOTH
@pytest.mark.parametrize("every", [False, True], ids=["one", "all"])
@pytest.mark.parametrize("kind", KINDS)
def test_scales_that_are_missing(tmp_path, kind, every, strict):
    tensors, metadata = good(kind)
    left = {key: value for key, value in tensors.items() if not (is_scale(key) and (every or key.startswith("a.")))}
    refused(write(tmp_path, left, metadata), strict, "scale")


@BOTH
@pytest.mark.parametrize("value, says", [
    (float("nan"), "nan, which is no scale"), (float("inf"), "inf, which is no scale"),
    (-1.0, "-1.0, which is no scale"),
    (0.0, "0.0, which is no scale"), (1e300, "1e+300, which float32 does not hold"),
    (1e-300, "1e-300, which float32 does not hold"), (3e38, "e+38, which float32 does not hold together with"),
    (1e-40, "e-40, which float32 does not hold together with"),
])  # fmt: skip
@pytest.mark.parametrize("kind", KINDS)
def test_values_that_are_no_scale(tmp_path, kind, value, says, strict):
    tensors, metadata = good(kind)
    for key in [key for key in tensors if is_scale(key)]:
        spoilt = tensors[key].double()
        spoilt.view(-1)[-1] = value
        refused(write(tmp_path, {**tensors, key: spoilt}, metadata), strict, says)


@BOTH
@pytest.mark.parametrize("shape", [(1, 1, 1), (1, 1, 1, 1, 1), (16,), (1, 16), (8, 16), (2,), (0,)])
@pytest.mark.parametrize("kind", KINDS)
def test_shapes_that_are_no_scales(tmp_path, kind, shape, strict):
    tensors, metadata = good(kind)
    for key in [key for key in tensors if is_scale(key)]:
        refused(write(tmp_path, {**tensors, key: torch.ones(shape)}, metadata), strict, f"{key} {shape}")


@BOTH
def test_a_scale_of_zero_over_zeros_is_right(tmp_path, strict):
    """What a quantiser without a least scale makes of a row, or a weight, of zeros; -0 is one."""
    weight = random(8, 16).to(E4M3)
    weight[3] = torch.zeros(16).neg().to(E4M3)
    scale = torch.full((8, 1), 0.5)
    scale[3] = 0
    path = write(tmp_path, {"a.weight": weight, "a.weight_scale": scale, "b.weight": torch.zeros(4, 4).to(E5M2),
                            "b.weight_scale": torch.tensor(0.0)})  # fmt: skip
    assert set(recognised(path, strict=strict)[2]) == {"a", "b"}
    scale[2] = 0
    refused(write(tmp_path, {"a.weight": weight, "a.weight_scale": scale}), strict, "a.weight_scale is 0.0")


@BOTH
def test_two_scales(tmp_path, strict):
    tensors = {"a.weight": random(8, 16).to(E4M3), "a.weight_scale": torch.tensor(0.5),
               "a.scale_weight": torch.tensor([0.5])}  # fmt: skip
    found = recognised(write(tmp_path, tensors), strict=strict)
    assert found[2]["a"].scale == "a.weight_scale"
    steps = part("plan").make(found[0], found[2], part("plan").Options()).steps
    assert [step.target for step in steps] == ["a.weight", "a.weight_scale"] or len(steps) == 2
    for other in (torch.tensor(7.0), torch.tensor(float("nan")), torch.ones(8, 1)):
        refused(write(tmp_path, {**tensors, "a.scale_weight": other}), strict, "two scales for a that differ")
    inputs = {"a.input_scale": torch.tensor(0.5), "a.scale_input": torch.tensor(0.25)}
    refused(write(tmp_path, {**tensors, **inputs}), strict, "that differ, a.input_scale and a.scale_input")


@BOTH
@pytest.mark.parametrize("dtype", [
    FNUZ, E5M2_FNUZ, torch.int32, torch.int8, torch.uint8, torch.bfloat16, torch.float16,
], ids=str)  # fmt: skip
@pytest.mark.parametrize("name", ["weight_scale", "scale_weight", "weight_scale_inv", "weight.scale"])
def test_a_weight_in_any_dtype_with_a_scale(tmp_path, dtype, name, strict):
    weight = (random(8, 16) * 4).to(dtype)
    refused(write(tmp_path, {"a.weight": weight, f"a.{name}": torch.tensor(0.5)}), strict, f"has a scale, a.{name}")
    stack = (random(2, 4, 3, 3) * 4).to(dtype)
    refused(write(tmp_path, {"a.weight": stack, f"a.{name}": torch.tensor(0.5)}), strict, f"has a scale, a.{name}")


@BOTH
def test_wide_weights_with_what_changes_nothing(tmp_path, strict):
    """A scale of ones, and the scales of inputs."""
    path = write(tmp_path, {"a.weight": random(8, 16), "a.weight_scale": torch.ones(8, 1),
                            "b.weight": random(8, 16).bfloat16(), "b.input_scale": torch.tensor(0.25)})
    assert recognised(path, strict=strict)[2] == {}


@BOTH
@pytest.mark.parametrize("tensors", [
    {"b.bias": (E4M3, (8,)), "b.bias_scale": 0.5},
    {"attn.in_proj_weight": (E4M3, (8, 16)), "attn.in_proj_weight_scale": 0.5},
    {"attn.in_proj_weight": (torch.bfloat16, (8, 16)), "attn.in_proj_weight_scale": 0.5},
    {"mlp.gate_up_proj": (E4M3, (2, 8, 16)), "mlp.gate_up_proj_scale": 0.5},
    {"mlp.gate_up_proj": (E4M3, (2, 8, 16)), "mlp.gate_up_proj_scale_inv": 0.5},
    {"mlp.gate_up_proj": (torch.bfloat16, (2, 8, 16)), "mlp.gate_up_proj_scale_inv": 0.5},
    {"weight": (E4M3, (8, 16)), "weight_scale": 0.5},
    {"weight": (E4M3, (8, 16)), "scale_weight": 0.5},
    {"x.Weight": (E4M3, (8, 16)), "x.Weight_scale": 0.5},
    {"norm.weight": (E4M3, (8,)), "norm.weight_scale": 0.5},
    {"x.weight_packed": (torch.int32, (8, 2)), "x.weight_scale": 0.5},
    {"x.qweight": (torch.int8, (8, 8)), "x.wscales": 0.5},
    {"a.weight": (E4M3, (8, 16)), "a.scaling": 0.5},
    {"a.weight": (E4M3, (8, 16)), "a.scaling_factor": 0.5},
    {"a.weight": (torch.uint8, (64, 1)), "a.weight.absmax": 0.5},
    {"a.weight": (E4M3, (8, 16)), "a.weight.amax": 0.5},
], ids=lambda tensors: next(iter(tensors)))  # fmt: skip
def test_what_is_no_matrix_by_name_with_a_scale(tmp_path, tensors, strict):
    """Whatever a scaled tensor is called, it is not used without its scale."""
    made = {name: random(*value[1]).to(value[0]) if isinstance(value, tuple) else torch.tensor(value)
            for name, value in tensors.items()}  # fmt: skip
    refused(write(tmp_path, {"c.weight": random(4, 4).bfloat16(), **made}), strict, "scale")


@BOTH
@pytest.mark.parametrize("key", ["quantization_config", "weight_scale", "scales"])
def test_metadata_that_speaks_of_scales(tmp_path, key, strict):
    refused(write(tmp_path, {"a.weight": random(8, 16).to(E4M3)}, {key: "{}"}), strict, f"metadata has {key}")
    path = write(tmp_path, {"a.weight": random(8, 16).bfloat16()}, {key: "{}", "ss_scale_weight_norms": "1"})
    assert recognised(path, strict=strict)[2] == {}


@BOTH
@pytest.mark.parametrize("beside", [{"scaled_fp8": torch.zeros(0).to(E4M3)}, {"c.weight_scale": torch.tensor(0.5)}],
                         ids=["a marker", "a scale"])  # fmt: skip
def test_what_stands_at_the_root_counts_for_every_part(tmp_path, beside, strict):
    dtype = E4M3 if "c.weight_scale" in beside else torch.bfloat16
    path = write(tmp_path, {**beside, "c.weight": random(4, 4).to(dtype),
                            "model.diffusion_model.a.weight": random(8, 16).to(E4M3)})
    refused(path, strict, "model.diffusion_model.a.weight is float8_e4m3fn and its scale is missing, while")


@BOTH
@pytest.mark.parametrize("dtype", [FNUZ, E5M2_FNUZ], ids=str)
def test_other_float8(tmp_path, dtype, strict):
    """Stock reads every matrix of a scaled_fp8 file as e4m3fn. A plain file in them is ComfyUI's to convert."""
    old = {"scaled_fp8": torch.zeros(0).to(E4M3), "a.weight": random(8, 16).to(dtype)}
    refused(write(tmp_path, old), strict, "its scale is missing, while the file's scaled_fp8 says that it has one")
    refused(write(tmp_path, {**old, "a.scale_weight": torch.tensor(0.5)}), strict, "a.weight is float8")
    plain = write(tmp_path, {"a.weight": random(8, 16).to(dtype)})
    if strict:
        with pytest.raises(ValueError, match="and nothing in the file says in which format"):
            recognised(plain)
    else:
        assert recognised(plain, strict=False)[2] == {}


@BOTH
@pytest.mark.parametrize("name, right", [
    ("shared", True), ("text_encoders.t5xxl.transformer.shared", True), ("transformer.wte", True),
    ("cond_stage_model.transformer.text_model.embeddings.token_embedding", True),
    ("text_encoders.qwen3_4b.transformer.model.embed_tokens", True),
    ("encoder.block.0.layer.0.SelfAttention.relative_attention_bias", True),
    ("mlp.shared", False), ("blocks.0.ff.shared", False), ("x.not_shared", False), ("blocks.0.experts_wte", False),
    ("my_embed_tokens", False),
])  # fmt: skip
def test_embeddings_alone_may_lack_a_scale(tmp_path, name, right, strict):
    of = part("layers").part(name)
    path = write(tmp_path, {f"{of}b.weight": random(8, 8).to(E4M3), f"{of}b.weight_scale": torch.tensor(0.5),
                            f"{name}.weight": random(8, 8).to(E4M3)})  # fmt: skip
    if right:
        assert list(recognised(path, strict=strict)[2]) == [f"{of}b"]
    else:
        refused(path, strict, f"{name}.weight is float8_e4m3fn and its scale is missing")


@BOTH
def test_parameters_that_are_only_called_scales(tmp_path, strict):
    """The names that ComfyUI's models have: of Flux, LTX, PixArt, CLIP, Stable Audio and others."""
    names = ("double_blocks.0.img_attn.norm.query_norm.scale", "transformer_blocks.0.scale_shift_table",
             "scale_shift_table", "audio_scale_shift_table", "prompt_scale_shift_table", "last_scale_shift_table",
             "logit_scale", "attn.per_dim_scale", "to_scale_shift_gate", "timestep_scale_multiplier", "vae_scale",
             "reg_scale", "rescale", "pos_embed_scale", "layer.inv_timescales")  # fmt: skip
    tensors = {name: random(4) for name in names}
    tensors |= {"double_blocks.0.img_attn.qkv.weight": random(8, 16).to(E4M3), "pos_embed": random(4, 4),
                "attn.to_q.weight": random(8, 16).to(E4M3), "shift_table.weight": random(4, 4)}
    path = write(tmp_path, tensors)
    assert set(recognised(path, strict=strict)[2]) == {"double_blocks.0.img_attn.qkv", "attn.to_q"}


@BOTH
@pytest.mark.parametrize("beside, says", [
    ({"b.weight_scale": torch.tensor(0.5)}, "the file holds scales of weights that it does not hold"),
    ({"b.comfy_quant": text({"format": "float8_e4m3fn"})}, "comfy_quant names a layer that it does not hold"),
])  # fmt: skip
def test_what_is_left_of_a_layer_tells_of_the_others(tmp_path, beside, says, strict):
    """The scales of a file whose weights were renamed, or cut out, are no less those of its other weights."""
    refused(write(tmp_path, {"a.weight": random(8, 16).to(E4M3), **beside}), strict, says)


@BOTH
@pytest.mark.parametrize("name", ["attn.in_proj_weight", "mlp.gate_up_proj"])
def test_a_matrix_by_another_name_without_its_scale(tmp_path, name, strict):
    tensors = {name: random(8, 16).to(E4M3), "a.weight": random(8, 16).to(E4M3)}
    assert list(recognised(write(tmp_path, tensors), strict=strict)[2]) == ["a"]
    refused(write(tmp_path, {**tensors, "a.weight_scale": torch.tensor(0.5)}), strict, f"{name} is float8_e4m3fn and")


# The file's texts


@BOTH
def test_metadata_and_a_tensor_that_contradict_each_other(tmp_path, strict):
    tensors = {"a.weight": random(8, 16).to(E4M3), "a.weight_scale": torch.tensor(0.5),
               "a.comfy_quant": text({"format": "float8_e4m3fn"})}  # fmt: skip
    for said, right in (({"format": "float8_e4m3fn"}, True), ({"format": "float8_e5m2"}, False), (None, False)):
        path = write(tmp_path, tensors, {"_quantization_metadata": json.dumps({"layers": {"a": said}})})
        if right:
            assert list(recognised(path, strict=strict)[2]) == ["a"]
        else:
            refused(path, strict, "contradicts itself: its metadata says")


@BOTH
@pytest.mark.parametrize("metadata", ["{", "[]", "null", '{"layers": []}', '{"layers": [1]}', '{"layers": null}', "{}",
                                      '{"layers":' + "[" * 100_000, '"' + "x" * 100])  # fmt: skip
def test_metadata_of_another_kind(tmp_path, metadata, strict):
    path = write(tmp_path, {"a.weight": random(8, 16)}, {"_quantization_metadata": metadata})
    refused(path, strict, "its metadata's _quantization_metadata can't be read")


@BOTH
@pytest.mark.parametrize("said", [b"null", b"[" * 200_000, b"7", b'"x"', b'{"format": null}'],
                         ids=["null", "deep", "a number", "a string", "no format"])  # fmt: skip
def test_a_text_of_another_kind(tmp_path, said, strict):
    tensors = {"a.weight": random(8, 16).to(E4M3), "a.weight_scale": torch.tensor(0.5),
               "a.comfy_quant": torch.tensor(list(said), dtype=torch.uint8)}  # fmt: skip
    refused(write(tmp_path, tensors), strict, "a")


@BOTH
def test_names_that_are_no_line(tmp_path, strict):
    path = write(tmp_path, {"a\n\x1b.weight": random(8, 16).to(E4M3), "a\n\x1b.weight_scale": torch.tensor(-1.0)})
    refused(path, strict, r"the scale a\n\x1b.weight_scale is -1.0")
