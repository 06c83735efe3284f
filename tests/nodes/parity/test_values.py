"""What a wire carries, read as tensors of a kind, and the sentence for each thing that can't be compared."""
from importlib import import_module
from types import SimpleNamespace

import pytest
import torch
from pack import NAME, load
from parity_toys import Nested

load()
values = import_module(f"{NAME}.nodes.parity.values")

IMAGE = torch.zeros(2, 4, 5, 3)


@pytest.mark.parametrize("thing, kind, shapes", [
    (IMAGE, "IMAGE", [(2, 4, 5, 3)]),
    (torch.zeros(1, 4, 5, 4), "IMAGE", [(1, 4, 5, 4)]),
    (torch.zeros(1, 4, 5), "MASK", [(1, 4, 5)]),
    (torch.zeros(4, 5, dtype=torch.bool), "MASK", [(4, 5)]),
    (torch.zeros(4, 5, dtype=torch.int64), "TENSOR", [(4, 5)]),
    (torch.zeros(4, 5).to(torch.float8_e4m3fn), "TENSOR", [(4, 5)]),
    (torch.zeros(8, 8, 3, 3).to(torch.float8_e5m2), "TENSOR", [(8, 8, 3, 3)]),
    (torch.zeros(7), "TENSOR", [(7,)]),
    (torch.tensor(1.0), "TENSOR", [()]),
    ({"samples": torch.zeros(1, 4, 8, 8)}, "LATENT", [(1, 4, 8, 8)]),
    ({"samples": Nested(torch.zeros(1, 4, 8, 8), torch.zeros(1, 8, 20))}, "LATENT", [(1, 4, 8, 8), (1, 8, 20)]),
    ({"waveform": torch.zeros(1, 2, 100), "sample_rate": 44100}, "AUDIO", [(1, 2, 100)]),
    (SimpleNamespace(get_components=lambda: SimpleNamespace(images=IMAGE)), "IMAGE", [(2, 4, 5, 3)]),
    ([[torch.zeros(1, 77, 8), {"pooled_output": None}]], "CONDITIONING", [(1, 77, 8)]),
    ([[torch.zeros(1, 77, 8), {"pooled_output": torch.zeros(1, 9)}], [torch.zeros(1, 5, 8), {}]], "CONDITIONING",
     [(1, 77, 8), (1, 9), (1, 5, 8)]),
    (torch.zeros(1, 4, 5, 3, dtype=torch.complex64), "TENSOR", [(1, 4, 5, 3)]),
    ([torch.zeros(3), torch.zeros(2)], "TENSOR", [(3,), (2,)]),
    (Nested(torch.zeros(3), torch.zeros(2)), "TENSOR", [(3,), (2,)]),
])
def test_kinds(thing, kind, shapes):
    value = values.read("value", thing)
    assert (value.kind, [tuple(t.shape) for t in value.tensors]) == (kind, shapes)
    assert value.describe().startswith(kind)


@pytest.mark.parametrize("thing, says", [
    (None, "value is nothing (None), which holds no tensor"),
    ("a cat", "value is the str 'a cat', which holds no tensor"),
    (3.5, "value is the float 3.5"),
    ({}, "value is of type dict"),
    ([], "value is of type list"),
    ({"samples": "none"}, "value holds the str 'none' where a tensor is expected"),
    (torch.zeros(2, 2, dtype=torch.uint8).view(torch.float4_e2m1fn_x2),
     "value is a tensor of float4_e2m1fn_x2, whose numbers torch can't read: dequantise it before comparing it."),
    ([[torch.zeros(1), {"pooled_output": 3}]], "value holds the int 3 where a tensor is expected"),
    ([[None, {}]], "value holds nothing (None) where a tensor is expected"),
    (torch.zeros(0, 8, 8, 3), "value is an empty IMAGE of shape (0, 8, 8, 3)"),
    ({"samples": torch.zeros(1, 4, 0, 8)}, "value is an empty LATENT of shape (1, 4, 0, 8)"),
    (torch.zeros(1, 8, 8, 3, dtype=torch.uint8), "value is an IMAGE of uint8: ComfyUI's images are floats from 0 to 1"),
    (torch.zeros(8, 8, 3, dtype=torch.uint8), "convert it first (image.float() / 255)"),
    (torch.zeros(1, 8, 8, 3, dtype=torch.int64), "value is an IMAGE of int64"),
    (torch.zeros(4, 4).to_sparse(), "value is a sparse tensor"),
    (torch.zeros(4, 5, device="meta"), "value is a meta tensor of shape (4, 5), which has a shape and no numbers"),
])
def test_what_cannot_be_compared_is_named(thing, says):
    with pytest.raises(values.ParityError) as caught:
        values.read("value", thing)
    assert says in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("value, reference, says", [
    (IMAGE, IMAGE[:1], "value has shape (2, 4, 5, 3) and reference (1, 4, 5, 3)"),
    (IMAGE, {"samples": IMAGE}, "value is an IMAGE and reference is a LATENT: compare two values of the same kind"),
    (torch.zeros(2, 3, 4), torch.zeros(5), "value is MASK (2, 3, 4) float32 on cpu and reference is TENSOR (5,) "
     "float32 on cpu: compare two values of the same kind and shape."),
    ([torch.zeros(1)], [torch.zeros(1), torch.zeros(1)],
     "value and reference hold 1 and 2 tensors: they must hold the same number."),
    ({"waveform": torch.zeros(1, 2, 9), "sample_rate": 44100}, {"waveform": torch.zeros(1, 2, 9), "sample_rate": 48000},
     "value has a sample_rate of 44100 and reference of 48000"),
    (torch.zeros(3, dtype=torch.complex64), torch.zeros(3), "value is complex64 and reference float32"),
])
def test_sides_that_do_not_match(value, reference, says):
    sides = values.read("value", value), values.read("reference", reference)
    with pytest.raises(values.ParityError) as caught:
        values.check_alike(*sides)
    assert says in str(caught.value)


@pytest.mark.parametrize("reference, kind", [
    (torch.rand(2, 3, 4), "MASK"),
    (torch.tensor([[0.0, 1.0], [float("nan"), 0.5]]), "MASK"),
    (torch.rand(2, 3, 4) * 2, "TENSOR"),
    (-torch.rand(2, 3, 4), "TENSOR"),
])
def test_a_mask_is_one_by_its_reference(reference, kind):
    """A value that has gone wrong must not change what the pair is."""
    wild = torch.full_like(reference, 1e6)
    settled = values.settle(values.read("value", wild), values.read("reference", reference))
    assert [side.kind for side in settled] == [kind, kind]


@pytest.mark.parametrize("reference", [torch.rand(4, 4), torch.rand(2, 3, 4), torch.rand(1, 8, 8, 3)])
@pytest.mark.parametrize("dtype", [torch.float8_e4m3fn, torch.float8_e5m2, torch.int32, torch.complex64])
def test_a_tensor_beside_what_only_looks_like_a_picture(reference, dtype):
    """A weight and its FP8 or integer values are compared, whatever their shape."""
    if dtype == torch.int32 and reference.ndim == 4:
        reference = torch.rand(1, 8, 8, 5)
    sides = values.read("value", reference.to(dtype)), values.read("reference", reference)
    assert [side.kind for side in values.settle(*sides)] == ["TENSOR", "TENSOR"]
    assert [side.kind for side in values.settle(*sides[::-1])] == ["TENSOR", "TENSOR"]
