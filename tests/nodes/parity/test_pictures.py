"""The sheet: where its panels are, what colours mean, and that one wrong pixel can be seen."""
import math
from importlib import import_module

import pytest
import torch
from pack import NAME, load
from parity_toys import Nested

load()
compare = import_module(f"{NAME}.nodes.parity.compare").compare
metrics = import_module(f"{NAME}.nodes.parity.metrics")
pictures = import_module(f"{NAME}.nodes.parity.pictures")
Tolerances = import_module(f"{NAME}.nodes.parity.verdict").Tolerances
values = import_module(f"{NAME}.nodes.parity.values")

MAGENTA = torch.tensor([1.0, 0.0, 1.0])


def sheet(value, reference):
    return compare(value, reference, Tolerances()).picture


def panels(picture, rows=1):
    """[row][column] of a sheet whose panels are all of one size."""
    image = picture.image[0]
    height = (image.shape[0] - (rows + 1) * pictures.GAP) // rows - pictures.CAPTION
    width = (image.shape[1] - 4 * pictures.GAP) // 3
    found = []
    for row in range(rows):
        top = pictures.GAP + row * (height + pictures.CAPTION + pictures.GAP) + pictures.CAPTION
        lefts = [pictures.GAP + column * (width + pictures.GAP) for column in range(3)]
        found.append([image[top : top + height, left : left + width] for left in lefts])
    return found


def image(batch=1, height=256, width=320):
    x = torch.linspace(0, 1, width).expand(batch, height, width)
    return torch.stack([x, x.flip(-1), x * 0 + 0.5], -1)


def test_both_sides_are_shown_as_they_are():
    reference = image()
    value = reference.flip(2)
    left, right, _ = panels(sheet(value, reference))[0]
    torch.testing.assert_close(left, value[0], atol=1 / 255, rtol=0)
    torch.testing.assert_close(right, reference[0], atol=1 / 255, rtol=0)


def test_it_is_an_image_for_the_next_node():
    picture = sheet(image(), image())
    assert picture.image.ndim == 4 and picture.image.shape[0] == 1 and picture.image.shape[-1] == 3
    assert picture.image.dtype == torch.float32 and 0 <= picture.image.min() and picture.image.max() <= 1


def test_no_difference_is_black():
    picture = sheet(image(), image())
    assert picture.rows == ((0, 0.0),)
    assert (panels(picture)[0][2] == 0).all()


@pytest.mark.parametrize("error, white", [(0.05, 0.05), (0.03, 0.05), (0.2, 0.2), (0.0007, 0.001), (0.011, 0.02)])
def test_the_difference_is_amplified_to_a_stated_scale(error, white):
    reference = image() * 0.5
    value = reference.clone()
    value[0, 100:120, 40:80] += error
    picture = sheet(value, reference)
    assert picture.rows == ((0, pytest.approx(white)),)
    heat = panels(picture)[0][2]
    assert (heat[:99] == 0).all() and (heat[105, 60] > 0).any()
    if error == white:
        assert (heat[105, 60] > 0.98).all()


def test_the_worst_pictures_are_shown_in_order():
    reference = image(batch=7)
    value = reference.clone()
    for frame, error in ((0, 0.01), (1, 0.2), (2, 0.02), (4, 0.3), (5, 0.1), (6, 0.4)):
        value[frame, 3, 3, 2] += error
    assert [frame for frame, _ in sheet(value, reference).rows] == [1, 4, 5, 6]


def test_a_speck_is_shown_beside_veils():
    """One wrong pixel has a higher PSNR than a faint veil; it is shown all the same."""
    reference = image(batch=6) * 0.5
    value = reference + 0.05
    value[2] = reference[2]
    value[2, 9, 9, 0] += 0.4
    assert 2 in [frame for frame, _ in sheet(value, reference).rows]


def test_pictures_without_a_difference_are_left_out():
    reference = image(batch=3)
    value = reference.clone()
    value[1] += 0.1
    assert [frame for frame, _ in sheet(value, reference).rows] == [1]


def test_what_is_not_finite_is_magenta_even_if_it_is_one_pixel():
    value = image()
    value[0, 50, 60, 1] = math.nan
    left, right, heat = panels(sheet(value, image()))[0]
    assert torch.equal(left[50, 60], MAGENTA) and not torch.equal(right[50, 60], MAGENTA)
    assert torch.equal(heat[48, 62], MAGENTA) and not torch.equal(heat[60, 60], MAGENTA)


@pytest.mark.parametrize("wrap, shape", [(lambda t: t, (1, 900, 1100, 3)), (lambda t: t, (1, 1000, 1000)),
                                         (lambda t: {"samples": t}, (1, 16, 300, 300))])
def test_a_picture_is_made_in_blocks_and_can_be_cancelled(monkeypatch, wrap, shape):
    """A picture of 50 megapixels is not held several times over in float64."""
    largest, ticks = [], []
    stock = pictures.as_float64
    monkeypatch.setattr(pictures, "as_float64", lambda tensor: largest.append(tensor.numel()) or stock(tensor))
    reference = torch.rand(shape, generator=torch.Generator().manual_seed(0))
    sides = [values.read(name, wrap(thing)) for name, thing in (("value", reference * 0.9), ("reference", reference))]
    found = metrics.compare(*sides)
    monkeypatch.setattr(pictures, "BLOCK", 1 << 16)
    pictures.sheet(*sides, found, lambda: ticks.append(1))
    largest = sorted(largest)[:-1] if len(shape) == 4 and shape[1] == 16 else largest  # the latent's own colours
    assert max(largest) <= 1 << 16 and len(ticks) > 3 * math.prod(shape) / (1 << 16) * 0.9

    def cancel():
        raise InterruptedError

    with pytest.raises(InterruptedError):
        pictures.sheet(*sides, found, cancel)


def test_one_wrong_pixel_survives_shrinking():
    reference = image(height=1500, width=2000)
    value = reference.clone()
    value[0, 700, 900, 0] += 0.5
    picture = sheet(value, reference)
    heat = panels(picture)[0][2]
    assert heat.shape[1] == pictures.LARGEST
    assert heat.max() > 0.98 and int((heat.sum(-1) > 0).sum()) <= 4


def latent(channels=16, seed=0):
    generator = torch.Generator().manual_seed(seed)
    small = torch.randn(1, channels, 4, 4, generator=generator)
    return torch.nn.functional.interpolate(small, size=(32, 32), mode="bicubic")


def test_a_latents_colours_mean_the_same_on_both_sides():
    reference = {"samples": latent()}
    left, right, heat = panels(sheet(reference, reference))[0]
    assert torch.equal(left, right) and (heat == 0).all()
    assert left.std() > 0.1, "false colour uses the range"
    assert not torch.equal(left[..., 0], left[..., 1]), "and more than grey"
    wrong = {"samples": latent() + 3}
    assert not torch.equal(*panels(sheet(wrong, reference))[0][:2])


@pytest.mark.parametrize("channels", [1, 2, 3, 4, 48])
def test_latents_of_any_number_of_channels(channels):
    one = {"samples": latent(channels)}
    assert sheet({"samples": one["samples"] * 1.01}, one).image.shape[-1] == 3


def test_a_nested_latent_whose_parts_differ_in_channels_shows_the_part_that_differs():
    """As video and audio of one latent: each part has a projection of its own."""
    video, audio = torch.rand(1, 128, 2, 4, 4), torch.rand(1, 8, 4, 16)
    reference = {"samples": Nested(video, audio)}
    picture = sheet({"samples": Nested(video, audio + 1)}, reference)
    assert [white for _, white in picture.rows] == [pytest.approx(1)]
    picture = sheet({"samples": Nested(video + 2, audio + 1)}, reference)
    assert sorted(white for _, white in picture.rows) == [pytest.approx(1), pytest.approx(2), pytest.approx(2)]


@pytest.mark.parametrize("dtype", [torch.float8_e4m3fn, torch.float8_e5m2])
@pytest.mark.parametrize("transposed", [False, True])
def test_fp8_weights_have_a_picture(dtype, transposed):
    one, other = torch.ones(4, 6).to(dtype), torch.full((4, 6), 3.0).to(dtype)
    if transposed:
        one, other = one.T, other.T
    assert sheet(one, other).rows == ((0, 2.0),)


@pytest.mark.parametrize("scale", [1e-320, 1e-200, 1e200, 1.7e308])
def test_latents_of_any_magnitude(scale):
    reference = latent().double().clamp(-1, 1)
    picture = sheet({"samples": -reference * scale}, {"samples": reference * scale})
    left, right, heat = panels(picture)[0]
    assert picture.image.isfinite().all() and not torch.equal(left, right) and heat.max() > 0.3
    assert right.std() > 0.1


def test_torchs_own_quantised_tensors_are_compared():
    one, other = (torch.quantize_per_tensor(torch.full((4, 4), n), 0.5, 0, torch.quint8) for n in (1.0, 3.0))
    assert sheet(one, other).rows == ((0, 2.0),)


def test_a_constant_latent_and_one_full_of_nan_beside_it():
    constant = {"samples": torch.ones(1, 4, 8, 8)}
    value = {"samples": torch.ones(1, 4, 8, 8)}
    value["samples"][:, :, :4] = math.nan
    left, _, _ = panels(sheet(value, constant))[0]
    assert torch.equal(left[0, 0], MAGENTA) and not torch.equal(left[-1, 0], MAGENTA)


@pytest.mark.parametrize("shape", [(), (1,), (7,), (5, 7, 200), (1, 77, 768), (3, 1000000), (2, 2, 2, 2, 2), (4, 4)])
def test_any_tensor_has_a_picture(shape):
    generator = torch.Generator().manual_seed(0)
    one = torch.randn(shape, generator=generator) * 3 - 5
    picture = sheet(one, one + 1)
    assert picture.image.shape[1] <= 4 * (pictures.LARGEST + pictures.CAPTION + 2 * pictures.GAP)
    assert picture.rows[0][1] == pytest.approx(1)


def test_masks_are_grey():
    mask = image()[..., 0]
    left, right, _ = panels(sheet(mask, mask))[0]
    assert torch.equal(left[..., 0], left[..., 2])
    torch.testing.assert_close(right[..., 0], mask[0], atol=1 / 255, rtol=0)


def test_in_full_images_are_handed_on_and_latents_in_false_colour():
    one = values.read("a", image(batch=3))
    assert torch.equal(pictures.as_images(one, one)[0], one.tensors[0])
    both = [values.Value(name, "LATENT", (torch.stack([latent()[0]] * 3, 1)[None],)) for name in "ab"]
    shown = pictures.as_images(*both)
    assert [tuple(side.shape) for side in shown] == [(3, 32, 32, 3)] * 2
    assert torch.equal(*shown)
