"""Layers found again by their values, wherever ComfyUI puts them and under whatever name."""
import pytest
import torch
from model_files import E4M3, E5M2, part, random

found = part("found")


class Quantised(torch.nn.Parameter):
    storage_dtype = E4M3


def module(*weights, buffers=()):
    root = torch.nn.Module()
    for number, weight in enumerate(weights):
        weight = weight if isinstance(weight, Quantised) else torch.nn.Parameter(weight, requires_grad=False)
        root.register_parameter(f"p{number}", weight)
    for number, buffer in enumerate(buffers):
        root.register_buffer(f"b{number}", buffer)
    return root


WEIGHT = random(48, 64, seed=1).to(E4M3)
SCALE = torch.tensor(0.5)
LAYER = found.stored("a", WEIGHT, SCALE)
OTHER = random(48, 64, seed=2)


@pytest.mark.parametrize("held", [
    [WEIGHT], [WEIGHT.half()], [WEIGHT.bfloat16()], [WEIGHT.float()], [WEIGHT.to(E5M2)],
    [WEIGHT.float().t()], [WEIGHT.float().t().contiguous()], [WEIGHT.bfloat16()[:, :, None, None]],
    [WEIGHT.bfloat16().view(48, 16, 2, 2)], list(WEIGHT.half().chunk(3)), [WEIGHT.half().flip(0)],
    [torch.cat((OTHER, WEIGHT.float(), OTHER))], [torch.cat((OTHER, WEIGHT.float()), 1)],
    [torch.cat((WEIGHT.float()[24:], WEIGHT.float()[:24]))], [OTHER, WEIGHT.float()], [WEIGHT.float()[None]],
], ids=["as it is", "float16", "bfloat16", "float32", "another FP8", "turned", "turned and copied", "a 1x1 convolution",
        "patches", "cut in three", "upside down", "joined", "joined sideways", "halves swapped", "beside another",
        "a batch of one"])  # fmt: skip
def test_unscaled_values_are_found(held):
    assert found.lost([module(*held)], [LAYER]) == ["a"]


@pytest.mark.parametrize("held", [
    [], [WEIGHT.float() * 0.5], [Quantised(WEIGHT.float(), requires_grad=False)], [OTHER], [OTHER.to(E4M3)],
    [WEIGHT[0].float()], [WEIGHT.float()[:3]], [torch.zeros(48, 64)], [torch.empty(48, 64, device="meta")],
    [torch.ones(48, 64, dtype=torch.bool)], [torch.empty(0, 64)],
], ids=["not there", "times its scale", "quantised", "another", "another in FP8", "a bias", "three rows", "zeros",
        "meta", "a mask", "empty"])  # fmt: skip
def test_what_is_right_is_not_refused(held):
    assert found.lost([module(*held, buffers=[torch.arange(64)[None], torch.ones(9, 9, dtype=torch.bool)])],
                      [LAYER]) == []


def test_each_layer_by_itself():
    """Two encoders of one naming, names with the same ends, one that is not in the model, and counts that agree."""
    second = found.stored("a", OTHER.to(E4M3), SCALE)
    scaled, raw = Quantised(WEIGHT.float(), requires_grad=False), OTHER.to(E4M3).bfloat16()
    assert found.lost([module(scaled, raw)], [LAYER, second]) == ["a"]
    assert found.lost([module(scaled), module(raw)], [LAYER, second]) == ["a"]
    assert found.lost([module(scaled, scaled)], [LAYER, second]) == []
    assert found.lost([module(WEIGHT.half(), raw)], [LAYER, second]) == ["a", "a"]
    assert found.lost([module(raw)], []) == []


@pytest.mark.parametrize("weight, scale", [
    (WEIGHT, torch.tensor(1.0)), (WEIGHT, torch.ones(48, 1)), (torch.zeros(48, 64).to(E4M3), SCALE),
    (WEIGHT[0], SCALE), (torch.empty(0, 64).to(E4M3), SCALE), (torch.empty(48, 0).to(E4M3), SCALE),
], ids=["scale 1", "ones", "zeros", "a vector", "no rows", "no columns"])
def test_where_a_scale_changes_nothing(weight, scale):
    assert found.stored("a", weight, scale) is None


def test_sparse_weights_and_narrow_ones():
    sparse = torch.zeros(4096, 64)
    sparse[::128] = random(32, 64)
    narrow = random(256, 4, seed=3).to(E4M3)
    for weight in sparse.to(E4M3), narrow, narrow.t(), narrow[:1], narrow[:, :1]:
        layer = found.stored("a", weight, SCALE)
        assert found.lost([module(weight.float())], [layer]) == ["a"]
        assert found.lost([module(weight.float() * 0.5, OTHER)], [layer]) == []


def test_experts_and_integers():
    experts = random(3, 40, 64, seed=4).to(E4M3)
    assert found.lost([module(experts.bfloat16())], [found.stored("e", experts, SCALE)]) == ["e"]
    assert found.lost([module(experts[1].bfloat16())], [found.stored("e", experts, SCALE)]) == []
    assert found.lost([module(*experts.bfloat16())], [found.stored("e", experts, SCALE)]) == ["e"]
    whole = (random(48, 64) * 40).to(torch.int8)
    assert found.lost([module(whole.half())], [found.stored("i", whole)]) == ["i"]
    assert found.lost([module(whole)], [found.stored("i", whole)]) == ["i"]
    assert found.lost([module(whole.half() * 0.5)], [found.stored("i", whole)]) == []


def test_it_reads_few_values():
    assert [lines.shape for lines in LAYER.lines] == [(8, 32), (8, 32)]
    assert all(lines.untyped_storage().nbytes() == 8 * 32 for lines in LAYER.lines), "of their own: the file may go"
