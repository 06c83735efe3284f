"""Windows: tiles that cover the input once, on whole cells, the same way whatever the scale of the result."""
from importlib import import_module

import pytest
import torch
from pack import NAME, load

load()
plan = import_module(f"{NAME}.nodes.parity.plan")
values = import_module(f"{NAME}.nodes.parity.values")


@pytest.mark.parametrize("height, width", [(64, 64), (8, 8), (130, 190), (513, 257), (1000, 24)])
@pytest.mark.parametrize("size", [8, 64, 100, 4096])
@pytest.mark.parametrize("step", [1, 8])
def test_tiles_keep_every_whole_cell_once(height, width, size, step):
    kept = torch.zeros(height, width, dtype=torch.int64)
    for window in plan.windows(height, width, plan.TILES, size, step):
        kept[window.keep_top : window.keep_bottom, window.keep_left : window.keep_right] += 1
        assert window.top <= window.keep_top < window.keep_bottom <= window.bottom <= height
        assert window.left <= window.keep_left < window.keep_right <= window.right <= width
        assert window.height % step == 0 and window.width % step == 0
        assert max(window.keep_bottom - window.keep_top, window.keep_right - window.keep_left) <= max(step, size)
    top, left = height % step // 2, width % step // 2
    inside = kept[top : top + height // step * step, left : left + width // step * step]
    assert (inside == 1).all() and kept.sum() == inside.numel()


@pytest.mark.parametrize("scale", [(8, 1), (1, 8), (1, 1)])
@pytest.mark.parametrize("region, size", [(plan.TILES, 16), (plan.TILES, 64), (plan.CROP, 32), (plan.WHOLE, 16)])
def test_results_come_together_as_one_picture(scale, region, size):
    """A result that is the input scaled up or down: cut, scaled, kept and assembled must be the whole, scaled."""
    up, down = scale
    source = torch.arange(64 * 96).reshape(1, 1, 64, 96).float()

    def scaled(tensor):
        return tensor.repeat_interleave(up, 2).repeat_interleave(up, 3)[..., ::down, ::down]

    windows = plan.windows(64, 96, region, size, down)
    parts = [
        plan.kept(scaled(source[..., w.top : w.bottom, w.left : w.right]), w, (2, 3)) for w in windows
    ]
    whole = plan.assemble(parts, windows, (2, 3))
    first, last = windows[0], windows[-1]
    expected = scaled(source[..., first.keep_top : last.keep_bottom, first.keep_left : last.keep_right])
    assert torch.equal(whole, expected)


def test_the_crop_is_the_centre():
    (window,) = plan.windows(100, 200, plan.CROP, 50, 1)
    assert (window.top, window.bottom, window.left, window.right) == (25, 75, 75, 125)


@pytest.mark.parametrize("region", plan.REGIONS)
def test_an_input_smaller_than_a_cell_is_named(region):
    with pytest.raises(values.ParityError, match="The input is 9 x 4: this VAE needs at least 8 x 8"):
        plan.windows(4, 9, region, 64, 8)


def test_an_unknown_region_is_named():
    with pytest.raises(values.Unfit, match="region is 'corner': choose one of whole, centre crop, tiles"):
        plan.windows(64, 64, "corner", 64, 8)


def test_a_result_of_an_odd_size_is_named():
    window = plan.windows(64, 64, plan.TILES, 24, 1)[1]
    with pytest.raises(values.ParityError, match="can't be put together: choose region 'whole' or 'centre crop'"):
        plan.kept(torch.zeros(1, 1, 7, 7), window, (2, 3))
