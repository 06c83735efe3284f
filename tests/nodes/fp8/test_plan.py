"""What becomes of each tensor: kept, cast, quantised; the patterns; the state dict that ComfyUI gets."""
import json

import pytest
import torch
from model_files import E4M3, E5M2, part, quant_file, random, recognised, text, write


@pytest.fixture
def plan(comfy_api):
    return part("plan")


def state_of(path, options, avoid=frozenset(), hooks=None):
    header, mapped, layers = recognised(path)
    made = part("plan").make(header, layers, options, avoid)
    state, failed = part("state").state_dict(mapped, made, options, "cpu", hooks or part("load").Hooks())
    return made, state, failed


def config(state, layer):
    return json.loads(bytes(state[f"{layer}.comfy_quant"].tolist()))


# Layers of real models: in each pair those that the default leaves alone, and those that it quantises.
FLUX = (["img_in", "txt_in", "time_in.in_layer", "vector_in.out_layer", "guidance_in.in_layer", "final_layer.linear",
         "final_layer.adaLN_modulation.1", "double_blocks.0.img_mod.lin", "double_blocks.0.txt_mod.lin",
         "single_blocks.0.modulation.lin", "double_blocks.0.img_attn.norm.query_norm"],
        ["double_blocks.0.img_attn.qkv", "double_blocks.0.img_attn.proj", "double_blocks.0.img_mlp.0",
         "double_blocks.0.txt_mlp.2", "single_blocks.0.linear1", "single_blocks.0.linear2"])  # fmt: skip
WAN = (["patch_embedding", "text_embedding.0", "time_embedding.2", "time_projection.1", "head.head", "img_emb.proj.1",
        "blocks.0.norm3", "blocks.0.self_attn.norm_q"],
       ["blocks.0.self_attn.q", "blocks.0.cross_attn.v_img", "blocks.0.ffn.0", "blocks.0.ffn.2"])  # fmt: skip
QWEN = (["img_in", "txt_in", "txt_norm", "time_text_embed.timestep_embedder.linear_1", "norm_out.linear", "proj_out",
         "transformer_blocks.0.img_mod.1", "transformer_blocks.0.txt_mod.1"],
        ["transformer_blocks.0.attn.to_q", "transformer_blocks.0.attn.add_q_proj", "transformer_blocks.0.attn.to_out.0",
         "transformer_blocks.0.img_mlp.net.0.proj", "transformer_blocks.0.txt_mlp.net.2"])  # fmt: skip
Z_IMAGE = (["x_embedder", "cap_embedder.1", "t_embedder.mlp.0", "layers.0.adaLN_modulation.0", "final_layer.linear",
            "layers.0.attention_norm1"],
           ["layers.0.attention.qkv", "layers.0.attention.out", "layers.0.feed_forward.w1",
            "noise_refiner.0.feed_forward.w2", "context_refiner.0.attention.qkv"])  # fmt: skip
T5 = (["shared", "encoder.final_layer_norm", "encoder.block.0.layer.0.SelfAttention.relative_attention_bias"],
      ["encoder.block.0.layer.0.SelfAttention.q", "encoder.block.0.layer.1.DenseReluDense.wo"])  # fmt: skip
CLIP_L = (["text_model.embeddings.token_embedding", "text_model.final_layer_norm", "text_projection"],
          ["text_model.encoder.layers.0.self_attn.q_proj", "text_model.encoder.layers.0.mlp.fc1"])  # fmt: skip
LLM = (["model.embed_tokens", "lm_head", "model.layers.0.input_layernorm", "model.norm"],
       ["model.layers.0.self_attn.q_proj", "model.layers.0.mlp.down_proj"])  # fmt: skip
SDXL = (["time_embed.0", "label_emb.0.0", "input_blocks.1.0.emb_layers.1", "out.2"],
        ["input_blocks.4.1.proj_in", "input_blocks.4.1.transformer_blocks.0.attn1.to_q",
         "input_blocks.4.1.transformer_blocks.0.attn1.to_out.0",
         "middle_block.1.transformer_blocks.0.ff.net.0.proj"])  # fmt: skip


@pytest.mark.parametrize("prefix", ["", "model.diffusion_model."])
@pytest.mark.parametrize("alone, quantised", [FLUX, WAN, QWEN, Z_IMAGE, T5, CLIP_L, LLM, SDXL],
                         ids=["flux", "wan", "qwen-image", "z-image", "t5", "clip-l", "llm", "sdxl"])  # fmt: skip
def test_the_default_leaves_norms_embedders_modulation_and_final_layers_alone(plan, prefix, alone, quantised):
    patterns = plan.lines(plan.LEAVE_ALONE)
    assert [name for name in alone if not plan.fits(prefix + name, patterns)] == []
    assert [name for name in quantised if plan.fits(prefix + name, patterns)] == []


@pytest.mark.parametrize("pattern, name, fits", [
    ("a", "x.a", True), ("a", "x.ba", False), ("a", "a.x", False), ("*a*", "x.bac.y", True), ("A?", "ab", True),
    ("b.*", "a.b.c", True), ("b.*", "a.xb.c", False), ("[ab]", "x.a", True), ("X.*", "x.y", True),
])  # fmt: skip
def test_patterns(plan, pattern, name, fits):
    assert plan.fits(name, plan.lines(pattern)) is fits


def test_the_lines_of_patterns(plan):
    assert plan.lines(" a \n\n# all of it\nb* # the b's\n") == ["a", "b*"]
    assert plan.lines("") == []


@pytest.mark.parametrize("given, says", [
    ({"quantize": "per block"}, "quantize is 'per block': it must be one of as stored, per tensor, per row."),
    ({"format": "float8"}, "format is 'float8': it must be one of float8_e4m3fn, float8_e5m2."),
])  # fmt: skip
def test_options_that_are_none(plan, given, says):
    with pytest.raises(ValueError) as caught:
        plan.Options(**given)
    assert str(caught.value) == says


def test_a_plain_file_gets_scales_of_one(plan, tmp_path):
    tensors = {"a.weight": random(8, 16).to(E4M3), "a.bias": random(8).to(E4M3), "n.weight": random(8).to(E5M2),
               "conv.weight": random(8, 4, 3, 3).to(E4M3), "b.weight": random(8, 8).bfloat16()}  # fmt: skip
    made, state, failed = state_of(write(tmp_path, tensors), plan.Options())
    assert failed == [] and made.left_alone == [] and made.quantized == []
    assert state["a.weight"].dtype is E4M3 and state["a.weight_scale"].item() == 1.0
    assert config(state, "a") == {"format": "float8_e4m3fn"}
    for name in "a.bias", "n.weight", "conv.weight":
        assert state[name].dtype is torch.bfloat16 and torch.equal(state[name].float(), tensors[name].float())
    assert torch.equal(state["b.weight"], tensors["b.weight"])
    assert set(state) == {*tensors, "a.weight_scale", "a.comfy_quant"}
    assert made.resident == 128 + 16 + 16 + 2 * 288 + 128


def test_the_older_scaled_kind_gets_todays_names(plan, tmp_path):
    tensors = {"scaled_fp8": torch.zeros(2).to(E4M3), "a.weight": random(8, 16).to(E4M3),
               "a.scale_weight": torch.tensor([0.5]), "a.scale_input": torch.tensor(2.0),
               "b.weight": random(8, 16).to(E5M2), "b.scale_weight": torch.tensor(0.25),
               "b.scale_input": torch.tensor(1.0)}  # fmt: skip
    _, state, _ = state_of(write(tmp_path, tensors), plan.Options())
    assert set(state) == {"a.weight", "a.weight_scale", "a.input_scale", "a.comfy_quant", "b.weight", "b.weight_scale",
                          "b.comfy_quant"}  # fmt: skip
    assert state["a.weight_scale"].shape == () and state["a.weight_scale"].item() == 0.5
    assert config(state, "a") == {"format": "float8_e4m3fn", "full_precision_matrix_mult": True}
    assert config(state, "b")["format"] == "float8_e5m2"


@pytest.mark.parametrize("per, shape", [("per tensor", ()), ("per row", (8, 1))])
@pytest.mark.parametrize("kind", ["float8_e4m3fn", "float8_e5m2"])
def test_wide_matrices_are_quantised_and_the_rest_is_not(plan, tmp_path, per, shape, kind):
    tensors = {"a.weight": random(8, 16).bfloat16(), "a.bias": random(8), "norm1.weight": random(8, 8),
               "stored.weight": random(8, 16).to(E4M3), "first_stage_model.x.weight": random(8, 8),
               "table": random(8, 8), "conv.weight": random(4, 4, 3, 3)}  # fmt: skip
    made, state, failed = state_of(write(tmp_path, tensors), plan.Options(per, kind))
    assert (made.quantized, made.left_alone, failed) == (["a"], ["norm1"], [])
    assert state["a.weight"].dtype is getattr(torch, kind) and state["a.weight_scale"].shape == shape
    assert config(state, "a") == {"format": kind}
    got = state["a.weight"].float() * state["a.weight_scale"]
    assert (got - tensors["a.weight"].float()).abs().max() < 0.13 * tensors["a.weight"].abs().max()
    for name in tensors.keys() - {"a.weight"}:
        assert state[name].dtype is tensors[name].dtype
    assert state["stored.weight_scale"].item() == 1.0


def test_no_patterns_leave_nothing_alone(plan, tmp_path):
    path = write(tmp_path, {"norm1.weight": random(8, 8), "b.weight": random(8, 8)})
    assert state_of(path, plan.Options("per row", leave_alone=""))[0].quantized == ["b", "norm1"]


def test_a_layer_with_nan_stays_wide_and_is_named(plan, tmp_path):
    broken = random(8, 16)
    broken[3, 4] = float("nan")
    made, state, failed = state_of(write(tmp_path, {"a.weight": broken, "b.weight": random(8, 16)}),
                                   plan.Options("per row"))  # fmt: skip
    assert failed == ["a"] and made.quantized == ["a", "b"]
    assert state["a.weight"].dtype is torch.float32 and "a.comfy_quant" not in state


@pytest.mark.parametrize("scale", [torch.tensor(0.5), torch.rand(8, 1, generator=torch.Generator().manual_seed(1))],
                         ids=["one", "rows"])  # fmt: skip
def test_a_layer_that_is_no_place_for_fp8_is_wide_times_its_scale(plan, tmp_path, scale):
    path = quant_file(tmp_path, scale)
    _, state, _ = state_of(path, plan.Options(), frozenset(("a",)))
    assert list(state) == ["a.weight"] and state["a.weight"].dtype is torch.bfloat16
    stored = recognised(path)[1].tensor("a.weight").float()
    assert torch.equal(state["a.weight"], (stored * scale).bfloat16())


def test_a_wide_layer_that_is_no_place_for_fp8_stays_as_it_is(plan, tmp_path):
    path = write(tmp_path, {"a.weight": random(8, 16), "b.weight": random(8, 16)})
    made, state, _ = state_of(path, plan.Options("per tensor"), frozenset(("a",)))
    assert made.quantized == ["b"] and state["a.weight"].dtype is torch.float32


def test_other_formats_pass_untouched(plan, tmp_path):
    """Their scales may be FP8 themselves."""
    tensors = {"a.weight": torch.zeros(8, 16, dtype=torch.uint8), "a.weight_scale": random(128, 4).abs().to(E4M3),
               "a.weight_scale_2": torch.tensor(0.5), "a.extra": random(4).to(E4M3),
               "a.comfy_quant": text({"format": "nvfp4"})}  # fmt: skip
    _, state, _ = state_of(write(tmp_path, tensors), plan.Options("per row"))
    assert {name: tensor.dtype for name, tensor in state.items()} == {
        name: tensor.dtype for name, tensor in tensors.items()
    }


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("shape", [(), (1,), (1, 1), (8, 1)])
def test_scales_are_float32_for_comfyui(plan, tmp_path, dtype, shape):
    """MPS has no float64."""
    path = write(tmp_path, {"a.weight": random(8, 16).to(E4M3), "a.weight_scale": torch.full(shape, 0.5, dtype=dtype)})
    scale = state_of(path, plan.Options())[1]["a.weight_scale"]
    assert scale.dtype is torch.float32 and scale.shape == (shape if len(shape) == 2 and shape[0] > 1 else ())
    assert (scale == 0.5).all()


def test_a_scale_under_both_names_goes_once(plan, tmp_path):
    path = write(tmp_path, {"a.weight": random(8, 16).to(E4M3), "a.weight_scale": torch.tensor(0.5),
                            "a.scale_weight": torch.tensor(0.5), "a.input_scale": torch.tensor(0.25),
                            "a.scale_input": torch.tensor(0.25)})  # fmt: skip
    state = state_of(path, plan.Options())[1]
    assert set(state) == {"a.weight", "a.weight_scale", "a.input_scale", "a.comfy_quant"}


def test_progress_goes_from_start_to_end_and_cancel_stops_it(plan, tmp_path):
    path = write(tmp_path, {f"l{n}.weight": random(8, 16) for n in range(5)})
    seen = []
    hooks = part("load").Hooks(progress=seen.append)
    state_of(path, plan.Options("per row"), hooks=hooks)
    assert seen == sorted(seen) and seen[-1] == 1.0 and len(seen) == 5

    class Cancelled(Exception):
        pass

    def tick():
        if len(seen) > 6:
            raise Cancelled

    with pytest.raises(Cancelled):
        state_of(path, plan.Options("per row"), hooks=part("load").Hooks(tick=tick, progress=seen.append))


def test_patterns_of_the_users_own_that_name_no_layer(plan, tmp_path):
    """Where there is something to leave alone. The list that the nodes come with is for all models at once."""
    path = write(tmp_path, {"a.weight": random(8, 16), "b.weight": random(8, 16).to(E4M3), "c": random(3)})
    patterns = f"{plan.LEAVE_ALONE}\nA\nb\nc\n[\n"
    made, _, _ = state_of(path, plan.Options(quantize="per row", leave_alone=patterns))
    assert made.unused == ["c", "["]
    assert state_of(path, plan.Options(leave_alone=patterns))[0].unused == []
