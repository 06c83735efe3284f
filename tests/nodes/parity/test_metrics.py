"""The numbers against plain numpy in float64, at once and block by block."""
import math
from importlib import import_module

import numpy as np
import pytest
import torch
from pack import NAME, load

load()
metrics = import_module(f"{NAME}.nodes.parity.metrics")
values = import_module(f"{NAME}.nodes.parity.values")


def compare(value, reference, **options):
    pair = values.settle(values.read("value", value), values.read("reference", reference))
    return metrics.compare(*pair, **options)


def seeded(*shape, seed=0):
    return torch.rand(*shape, generator=torch.Generator().manual_seed(seed))


def by_numpy(value, reference, data_range):
    a, b = value.double().numpy().ravel(), reference.double().numpy().ravel()
    d = np.abs(a - b)
    return {
        "psnr": 10 * math.log10(data_range**2 / np.mean(d * d)),
        "max_abs": d.max(),
        "mean_abs": d.mean(),
        "max_rel": (d / np.maximum(np.abs(b), data_range / 1000)).max(),
        "cosine": a @ b / np.linalg.norm(a) / np.linalg.norm(b),
    }


@pytest.mark.parametrize("block", [1 << 20, 1000, 7, 1])
@pytest.mark.parametrize("wrap, shape, data_range", [
    (lambda t: t, (3, 9, 11, 3), 1.0),
    (lambda t: t, (2, 9, 11), 1.0),
    (lambda t: {"samples": t * 8 - 4}, (2, 4, 5, 6), None),
    (lambda t: {"samples": t * 8 - 4}, (1, 4, 3, 5, 6), None),
    (lambda t: t * 8 - 4, (5, 7), None),
    (lambda t: t * 8 - 4, (40,), None),
])
def test_every_number_is_numpys(monkeypatch, wrap, shape, data_range, block):
    monkeypatch.setattr(metrics.blocks, "__defaults__", (block,))
    value, reference = wrap(seeded(*shape)), wrap(seeded(*shape, seed=1))
    found = compare(value, reference)
    a, b = (side["samples"] if isinstance(side, dict) else side for side in (value, reference))
    expected_range = data_range or float(b.double().max() - b.double().min())
    assert found.data_range == pytest.approx(expected_range, rel=1e-12)
    for name, number in by_numpy(a, b, expected_range).items():
        assert getattr(found, name) == pytest.approx(number, rel=1e-9), name
    assert (found.elements, found.compared, found.unlike) == (a.numel(), a.numel(), 0)


@pytest.mark.parametrize("power", [-1000, -600, 600, 1000])
def test_numbers_whose_squares_float64_cannot_hold(power):
    """The same picture in units of 2 ** power: every ratio stays."""
    scale = math.ldexp(1.0, power)
    value, reference = seeded(1, 4, 6, 6).double() - 0.5, seeded(1, 4, 6, 6, seed=1).double() - 0.5
    plain = compare({"samples": value}, {"samples": reference})
    scaled = compare({"samples": value * scale}, {"samples": reference * scale})
    for name in ("psnr", "cosine", "max_rel"):
        assert getattr(scaled, name) == pytest.approx(getattr(plain, name), rel=1e-12), name
    for name in ("max_abs", "mean_abs", "data_range", "rel_floor"):
        assert getattr(scaled, name) == pytest.approx(getattr(plain, name) * scale, rel=1e-12), name
    assert scaled.frame_psnr(scaled.frames[0]) == pytest.approx(plain.psnr, rel=1e-12)


def test_the_least_and_the_greatest_numbers_there_are():
    most = torch.full((1, 4, 4, 4), 1.7e308, dtype=torch.float64)
    found = compare({"samples": most}, {"samples": -most})
    assert found.max_abs == metrics.LARGEST and found.cosine == pytest.approx(-1) and math.isfinite(found.psnr)
    least = torch.full((1, 4, 4, 4), 5e-324, dtype=torch.float64)
    found = compare({"samples": least}, {"samples": -least})
    assert found.max_abs == 1e-323 and found.cosine == pytest.approx(-1) and math.isfinite(found.psnr)


def test_two_known_values_by_hand():
    """Off by 0.1 everywhere in an image: 20 dB."""
    grey = torch.full((1, 4, 4, 3), 0.5, dtype=torch.float64)
    found = compare(grey + 0.1, grey)
    assert found.psnr == pytest.approx(20.0)
    assert found.max_abs == pytest.approx(0.1) and found.mean_abs == pytest.approx(0.1)
    assert found.max_rel == pytest.approx(0.2) and found.cosine == pytest.approx(1.0)


@pytest.mark.parametrize("thing", [seeded(1, 4, 4, 3), torch.zeros(1, 4, 4, 3), {"samples": seeded(1, 4, 2, 2)}])
def test_equal_inputs(thing):
    found = compare(thing, thing)
    assert found.psnr == math.inf
    assert (found.max_abs, found.mean_abs, found.max_rel, found.cosine) == (0, 0, 0, 1)


def test_zero_against_something_has_no_angle():
    assert compare(torch.zeros(1, 2, 2, 3), torch.ones(1, 2, 2, 3)).cosine == 0


def test_opposite_latents():
    latent = seeded(1, 4, 4, 4) + 1
    assert compare({"samples": -latent}, {"samples": latent}).cosine == pytest.approx(-1)


@pytest.mark.parametrize("thing, data_range, source", [
    (torch.zeros(1, 2, 2, 3), 1.0, "images are 0 to 1"),
    (torch.ones(1, 2, 2), 1.0, "masks are 0 to 1"),
    (torch.tensor([-2.0, 3.0]), 5.0, "peak to peak of the reference"),
    (torch.tensor([-2.0, -2.0]), 2.0, "magnitude of the reference, which is constant"),
    (torch.tensor([0.0, 0.0]), 1.0, "1, since the reference is zero everywhere"),
])
def test_the_data_range_is_stated(thing, data_range, source):
    found = compare(thing, thing)
    assert (found.data_range, found.data_range_source) == (data_range, source)
    asked = compare(thing, thing, data_range=7.0)
    assert (asked.data_range, asked.data_range_source) == (7.0, "as given")


@pytest.mark.parametrize("wrong", [-1.0, math.nan, math.inf])
def test_a_wrong_data_range_is_named(wrong):
    with pytest.raises(values.ParityError, match=f"data_range is {wrong:g}"):
        compare(torch.zeros(3), torch.zeros(3), data_range=wrong)


def test_what_is_not_finite_is_counted_on_each_side_and_left_out():
    nan, inf = math.nan, math.inf
    value = torch.tensor([1.0, nan, nan, inf, inf, -inf, 2.0])
    reference = torch.tensor([1.0, nan, 5.0, inf, -inf, 4.0, 2.5])
    found = compare(value, reference)
    assert (found.value.nan, found.value.inf) == (2, 3)
    assert (found.reference.nan, found.reference.inf) == (1, 2)
    assert (found.elements, found.compared, found.unlike) == (7, 2, 3)
    assert found.max_abs == 0.5 and found.mean_abs == 0.25
    assert (found.reference.minimum, found.reference.maximum) == (1.0, 5.0)


@pytest.mark.parametrize("sides, says", [
    ((torch.full((4,), math.nan), torch.ones(4)), "value is all NaN (every one of its 4 elements)"),
    ((torch.ones(4), torch.full((4,), math.nan)), "reference is all NaN"),
    ((torch.tensor([1.0, math.nan]), torch.tensor([math.inf, 1.0])), "no element that is finite on both sides"),
])
def test_nothing_to_compare(sides, says):
    with pytest.raises(values.ParityError) as caught:
        compare(*sides)
    assert says in str(caught.value)


@pytest.mark.parametrize(
    "dtype", [torch.float16, torch.bfloat16, torch.float64, torch.float8_e4m3fn, torch.bool, torch.int32]
)
def test_dtypes(dtype):
    value = torch.tensor([0.0, 1.0, 1.0]).to(dtype)
    reference = torch.tensor([0.0, 1.0, 0.0]).to(dtype)
    assert compare(value, reference).mean_abs == pytest.approx(1 / 3)


def test_mixed_dtypes_compare_as_numbers():
    assert compare(torch.tensor([0.5, 2.0], dtype=torch.bfloat16), torch.tensor([0.5, 2.0])).psnr == math.inf


def test_complex_numbers_compare_by_their_parts():
    """Each part is an element."""
    found = compare(torch.tensor([1 + 1j, 2.0]), torch.tensor([1 + 0.5j, 2.0]).conj().conj())
    assert (found.max_abs, found.elements, found.compared) == (0.5, 4, 4)
    found = compare(torch.tensor([complex(1, math.nan), 2.0]), torch.tensor([1 + 0.5j, 2.0]))
    assert (found.elements, found.compared, found.unlike, found.value.nan) == (4, 3, 1, 1)


@pytest.mark.parametrize("dtype, other", [(torch.int64, torch.int64), (torch.uint64, torch.uint64),
                                          (torch.uint64, torch.int64), (torch.int64, torch.float64)])
@pytest.mark.parametrize("base", [2**53, 2**62, 2**53 * 3])
def test_integers_that_float64_rounds(dtype, other, base):
    """They are told apart to the last bit, and by how much."""
    numbers = [base, base + 1, base - 3, 5]
    one, same = torch.tensor(numbers, dtype=dtype), torch.tensor([base] * 3 + [5], dtype=other)
    found = compare(one, same)
    assert (found.max_abs, found.mean_abs) == (3.0, 1.0) and found.psnr < math.inf
    if dtype == other:
        assert compare(one, one.clone()).max_abs == 0


def test_the_ends_of_the_64_bit_integers():
    ends = torch.tensor([-(2**63), 2**63 - 1, -1, 0])
    assert compare(ends, ends.clone()).max_abs == 0
    found = compare(ends, torch.tensor([-(2**63) + 1, 2**63 - 2, -1, 0]))
    assert (found.max_abs, found.mean_abs) == (1.0, 0.5)
    most = torch.tensor([2**64 - 1, 2**63], dtype=torch.uint64)
    assert compare(most, torch.tensor([2**64 - 2, 2**63], dtype=torch.uint64)).max_abs == 1.0


def test_frames_and_the_worst_of_them():
    reference = seeded(5, 6, 6, 3)
    value = reference.clone()
    value[1, 0, 0, 0] += 0.3
    value[3, :, :, 0] += 0.2
    found = compare(value, reference)
    assert len(found.frames) == 5 and found.worst() == 3
    assert [frame.max_abs > 0 for frame in found.frames] == [False, True, False, True, False]
    assert found.frame_psnr(found.frames[0]) == math.inf
    assert found.frame_psnr(found.frames[3]) == pytest.approx(10 * math.log10(3 / 0.04), rel=1e-5)
    value[4, 2, 2, 1] = math.nan
    assert compare(value, reference).worst() == 4


def test_frames_of_a_video_latent_are_its_third_dimension():
    reference = {"samples": seeded(2, 4, 3, 5, 5)}
    value = {"samples": reference["samples"].clone()}
    value["samples"][1, :, 2] += 1
    found = compare(value, reference)
    assert len(found.frames) == 6 and found.worst() == 5


def test_several_tensors_are_one_comparison():
    one = [torch.tensor([0.0, 4.0]), torch.tensor([[1.0]])]
    found = compare(one, [one[0], one[1] + 1])
    assert (found.elements, found.max_abs, found.worst()) == (3, 1.0, 1)


@pytest.mark.parametrize("shape", [(), (1,), (7,), (3, 5, 7), (1, 1, 64), (2, 3, 4, 5), (100, 1)])
@pytest.mark.parametrize("limit", [1, 2, 10, 1000])
def test_blocks_tile_the_tensor_exactly(shape, limit):
    seen = torch.zeros(shape, dtype=torch.int64)
    for index in metrics.blocks(shape, limit):
        assert seen[index].numel() <= limit
        seen[index] += 1
    assert (seen == 1).all()


def test_a_view_is_compared_without_a_copy_of_it(monkeypatch):
    """ComfyUI's VAE hands out images that are permuted views; a long video must not be copied to be compared."""
    sizes = []
    as_float64 = metrics.as_float64
    monkeypatch.setattr(metrics, "as_float64", lambda t: sizes.append(t.numel()) or as_float64(t))
    monkeypatch.setattr(metrics.blocks, "__defaults__", (1000,))
    view = seeded(20, 3, 16, 16).movedim(1, -1)
    assert compare(view, view.clone()).psnr == math.inf
    assert max(sizes) <= 1000 and len(sizes) > 4 * 15


def test_it_can_be_cancelled_between_blocks(monkeypatch):
    monkeypatch.setattr(metrics.blocks, "__defaults__", (10,))
    calls = []

    def tick():
        calls.append(1)
        if len(calls) == 3:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        compare(seeded(4, 4, 4, 3), seeded(4, 4, 4, 3), tick=tick)
    assert len(calls) == 3
