"""A real component: transformers generates with its mixture-of-experts models on the device, token for token as on the
CPU, and its decoding reaches our kernels; also that it does not unless a user says so (transformers #47107)."""

import functools
import importlib

import generation
import pytest
import torch

TOKENS = 32
SOFTMAXES = {"Qwen3-MoE": 1, "LFM2-MoE": 0}  # an expert layer's router has; LFM2's has a sigmoid
MODELS = pytest.mark.parametrize("name", list(generation.MODELS))


@functools.cache
def cpu(name: str, larger: bool = False, batch: int = 1) -> tuple[torch.nn.Module, torch.Tensor, torch.Tensor]:
    """(model, prompt, the tokens that the CPU generates)"""
    model = generation.MODELS[name](larger)
    ids = generation.prompt(model, batch)
    return model, ids, generation.generate(model, ids, TOKENS).tokens


@pytest.fixture
def world():
    """world("2.13"): (installation, meter), the pack installed on that torch's stock with a meter round each op."""
    import softmetal
    from pack import load

    face = load().metal_kernels
    installation = importlib.import_module(f"{face.__name__}.installation").Installation
    opened = []

    def enter(version: str, **modes: str):
        for manager in (softmetal.profile(faults=version), generation.metered_kernels(face, installation)):
            opened.append(manager)
            entered = manager.__enter__()
        entered[0].set_mode(**modes)
        return entered

    yield enter
    for manager in reversed(opened):
        manager.__exit__(None, None, None)


def check_tokens(world, name: str, version: str, mode: str, larger: bool = False, batch: int = 1) -> None:
    from softmetal import counters

    model, ids, expected = cpu(name, larger, batch)
    installation, meter = world(version, grouped_mm=mode)
    here = generation.on_mps(model)
    generation.use_grouped_mm(here)
    counters.reset()
    made = generation.generate(here, ids, TOKENS)
    assert torch.equal(made.tokens, expected)
    forwards, layers = made.steps + 1, generation.expert_layers(model)
    assert made.steps == TOKENS - 1 and layers
    wanted = 2 * layers * forwards  # each layer multiplies twice, in each decode step too
    stock = version == "2.15" and mode == "auto"  # that torch has the kernels itself
    assert meter.calls["_grouped_mm"] == (0 if stock else wanted)
    assert meter.calls["topk"] == (0 if stock else layers * forwards)
    if version != "2.15":  # whose softmax, and linear of one row, are good
        assert meter.calls["_softmax"] >= SOFTMAXES[name] * layers * forwards
        assert meter.calls["linear"] > layers * forwards
    assert meter.host_copies == meter.synchronizations == 0
    if stock:
        assert counters.calls("aten::_grouped_mm") == wanted
    states = {switch.kernel.name: switch.failure for switch in installation.switches}
    assert not any(states.values()), states


@MODELS
@pytest.mark.parametrize(
    ("version", "mode"), [("2.9", "auto"), ("2.13", "auto"), ("2.15", "on")], ids=lambda value: value
)
def test_tokens_are_the_cpus(world, name, version, mode):
    check_tokens(world, name, version, mode)


@MODELS
def test_auto_leaves_2_15_its_own(world, name):
    check_tokens(world, name, "2.15", "auto")


@MODELS
def test_unasked_transformers_decodes_without_grouped_mm(world, name):
    """generate() sets batched_mm for the decode loop wherever the device is not a CPU, and takes the name back."""
    model, ids, expected = cpu(name)
    _, meter = world("2.13")
    here = generation.on_mps(model)
    assert set(here.get_experts_implementation().values()) == {"grouped_mm"}
    made = generation.generate(here, ids, 4)
    assert torch.equal(made.tokens, expected[:, : ids.shape[1] + 4])
    assert meter.calls["_grouped_mm"] == 2 * generation.expert_layers(model)  # of the prompt alone
    assert set(here.get_experts_implementation().values()) == {"grouped_mm"}


@MODELS
def test_stock_waits_in_each_layer(world, name):
    """What zero waits of ours is to be compared with."""
    from softmetal import counters

    model, ids, expected = cpu(name)
    installation, meter = world("2.13")
    here = generation.on_mps(model)
    generation.use_grouped_mm(here)
    copies = {}
    for mode in ("off", "auto"):
        installation.set_mode(grouped_mm=mode)
        generation.generate(here, ids, 2)  # first uses are checked, which waits
        counters.reset()
        made = generation.generate(here, ids, 4)
        copies[mode] = counters.host_copies()
        assert torch.equal(made.tokens, expected[:, : ids.shape[1] + 4])
    products = 2 * generation.expert_layers(model) * 4
    # A histc of floats goes to stock, which waits on a Mac but not here; our override waits for it first (waits.py).
    beforehand = counters.calls("aten::histc")
    assert copies["off"] - (copies["auto"] - beforehand) >= products and not meter.host_copies


@pytest.mark.full
@MODELS
@pytest.mark.parametrize("version", ["2.9", "2.13"])
def test_larger_models_and_two_prompts(world, name, version):
    check_tokens(world, name, version, "auto", larger=True, batch=2)


@pytest.mark.full
@MODELS
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_logits_of_a_long_prompt(world, name, dtype):
    """In half the bits: the tiled kernels, too. No further from float64 than the CPU, within a factor of 1.5: the order
    of additions is free."""
    model, _, _ = cpu(name, True, 2)
    ids = generation.prompt(model, 2, 45)
    halves = generation.on_mps(model).to("cpu", dtype)
    _, meter = world("2.13")
    here = generation.on_mps(halves)
    generation.use_grouped_mm(here)
    with torch.inference_mode():
        theirs = halves(ids).logits
        ours = here(ids.to("mps")).logits.cpu()
        halves.set_experts_implementation("eager")  # the CPU's grouped_mm takes no float64
        exact = halves.double()(ids).logits
    assert meter.calls["_grouped_mm"] == 2 * generation.expert_layers(model)
    distance = [(logits.double() - exact).norm() / exact.norm() for logits in (theirs, ours)]
    assert distance[1] <= 1.5 * distance[0], distance


@MODELS
def test_the_name_can_be_given_when_a_model_is_loaded(tmp_path, name):
    model, ids, expected = cpu(name)
    generation.use_grouped_mm(generation.MODELS[name]())  # registers it
    model.save_pretrained(tmp_path)
    loaded = type(model).from_pretrained(tmp_path, experts_implementation=generation.EXPERTS)
    assert set(loaded.get_experts_implementation().values()) == {generation.EXPERTS}
    assert torch.equal(generation.generate(loaded, ids, 4).tokens, expected[:, : ids.shape[1] + 4])
