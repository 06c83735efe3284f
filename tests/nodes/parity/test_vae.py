"""A VAE against a CPU float32 copy of itself: operations, regions, refusals, cancel, and nothing left behind."""
import copy
import gc
import json
import threading
import types
import weakref
from importlib import import_module

import pytest
import torch
from pack import NAME
from parity_runs import GIB, Hooks, image, latent, parity
from parity_toys import Model, ToyVAE, VideoVAE

cpu_copy = import_module(f"{NAME}.nodes.parity.cpu_copy")
values = import_module(f"{NAME}.nodes.parity.values")


@pytest.mark.parametrize("region", ["whole", "centre crop", "tiles"])
@pytest.mark.parametrize("operation, thing", [
    ("decode", latent(2, 8, 16, 24)),
    ("encode", image(2)),
    ("round trip", image(2)),
    ("round trip", latent(2, 8, 16, 24)),
])
def test_float32_on_the_cpu_agrees_with_itself(operation, thing, region):
    """Noise, tiles and order are the same on both sides, so not even a sampled posterior makes a difference."""
    done = parity(ToyVAE(torch.float32), thing, operation, region, exact=True)
    assert done.comparison.passed, done.text
    assert done.comparison.metrics.elements > 0


@pytest.mark.parametrize("operation, thing", [("decode", latent()), ("encode", image()), ("round trip", image())])
def test_sixteen_bits_are_near_and_a_fault_is_seen(operation, thing):
    near = parity(ToyVAE(torch.bfloat16), thing, operation, min_psnr=25).comparison
    assert near.passed and 25 < near.metrics.psnr < 70
    wrong = parity(ToyVAE(torch.bfloat16, fault=0.5), thing, operation, min_psnr=25).comparison
    assert not wrong.passed and wrong.metrics.psnr < 25


def test_the_cpu_side_is_the_vae_in_float32():
    """What it is compared with is the same decode by hand."""
    vae = ToyVAE(torch.float16, fault=0.1)
    done = parity(vae, latent())
    by_hand = ToyVAE(torch.float32)
    by_hand.first_stage_model.load_state_dict(vae.first_stage_model.state_dict())
    assert torch.equal(done.cpu.tensors[0], by_hand.decode(latent()["samples"]))
    assert torch.equal(done.device.tensors[0], vae.decode(latent()["samples"]))


@pytest.mark.parametrize("operation, thing, calls", [
    ("decode", latent(3, 8, 8, 8), [("decode", (1, 8, 8, 8))] * 3),
    ("encode", image(2, 32, 32), [("encode", (1, 32, 32, 3))] * 2),
])
def test_a_batch_runs_one_by_one(operation, thing, calls):
    vae = ToyVAE()
    parity(vae, thing, operation)
    assert vae.calls[1 : 1 + len(calls)] == calls, "after the piece that tells how long it will take"


def test_a_video_stays_whole_and_its_frames_are_a_batch_of_images():
    vae = VideoVAE(torch.float32)
    done = parity(vae, image(8, 32, 32), "encode")
    assert vae.calls[1] == ("encode", (8, 32, 32, 3)) and done.device.tensors[0].shape == (1, 8, 2, 8, 8)
    done = parity(vae, latent(1, 8, 3, 16, 24), "round trip", "tiles", size=32)
    assert done.comparison.passed and done.device.tensors[0].shape == (1, 8, 3, 16, 24)


@pytest.mark.parametrize("thing, operation, frames, shape", [
    (image(8, 32, 32), "encode", 5, (5, 8, 8, 8)), (latent(4, 8, 8, 8), "decode", 1, (1, 32, 32, 3)),
])
def test_frames_limits_the_batch(thing, operation, frames, shape):
    assert parity(ToyVAE(), thing, operation, frames=frames).device.tensors[0].shape == shape


def test_frames_limits_a_latents_third_dimension():
    assert parity(VideoVAE(), latent(1, 8, 5, 8, 8), frames=2).device.tensors[0].shape == (8, 32, 32, 3)


@pytest.mark.parametrize("region, size, shape", [
    ("whole", 32, (1, 64, 96, 3)), ("tiles", 32, (1, 64, 96, 3)), ("centre crop", 32, (1, 32, 32, 3)),
    ("centre crop", 4096, (1, 64, 96, 3)), ("tiles", 4096, (1, 64, 96, 3)),
])
def test_size_is_in_pixels_of_the_picture(region, size, shape):
    assert parity(ToyVAE(), latent(), "decode", region, size).device.tensors[0].shape == shape


def test_tiles_show_the_same_picture_as_the_whole():
    """The toy sees 2 cells far and a tile's margin is one, so only a tile's rim may differ a little."""
    whole = parity(ToyVAE(torch.float32), latent()).cpu.tensors[0]
    tiled = parity(ToyVAE(torch.float32), latent(), region="tiles", size=32).cpu.tensors[0]
    assert (whole - tiled).abs().median() == 0


def test_each_stage_of_a_round_trip_is_reported():
    done = parity(ToyVAE(), image(), "round trip")
    assert [stage["step"] for stage in done.data["vae"]["stages"]] == ["encode", "decode"]
    assert done.data["vae"]["stages"][0]["kind"] == "LATENT" and done.data["kind"] == "IMAGE"
    assert "after 'encode' alone: PSNR" in done.text


def test_the_report_says_what_ran_where():
    done = parity(ToyVAE(), latent(), region="tiles", size=32)
    for words in ("operation: decode of LATENT (1, 8, 16, 24) float32", "6 tiles of at most 32 pixels",
                  "device side: cpu bfloat16", "CPU side: cpu float32", "(estimate", "available",
                  "This VAE runs on the CPU here: no other device was checked.", "kernels took part"):
        assert words in done.text
    facts = json.loads(json.dumps(done.data))["vae"]
    assert facts["windows"] == 6 and facts["device"] == "cpu bfloat16" and facts["flops"] > 0
    assert facts["cpu_bytes_available"] == 8 * GIB


def test_the_users_vae_and_inputs_are_left_as_they_were():
    vae, thing = ToyVAE(), latent()
    attributes = dict(vars(vae))
    weights = copy.deepcopy(vae.first_stage_model.state_dict())
    samples, state = thing["samples"].clone(), torch.get_rng_state()
    parity(vae, thing, "round trip", "tiles")
    assert vars(vae) == attributes
    assert all(torch.equal(weights[name], now) for name, now in vae.first_stage_model.state_dict().items())
    assert {w.dtype for w in vae.first_stage_model.parameters()} == {torch.bfloat16}
    assert torch.equal(samples, thing["samples"]) and torch.equal(state, torch.get_rng_state())


@pytest.mark.parametrize("thing, operation, says", [
    (latent(), "encode", "operation 'encode' takes an IMAGE, but image_or_latent is a LATENT"),
    (image(), "decode", "operation 'decode' takes a LATENT, but image_or_latent is an IMAGE"),
    (image()[..., 0], "encode", "image_or_latent is MASK (1, 64, 96) float32 on cpu: connect an IMAGE"),
    (None, "decode", "image_or_latent is nothing (None)"),
    ({"samples": torch.zeros(1, 8, 64)}, "decode", "image_or_latent is a LATENT of shape (1, 8, 64): only latents of"),
    ({"samples": torch.zeros(0, 8, 4, 4)}, "decode", "image_or_latent is an empty LATENT"),
    ({"samples": torch.full((1, 8, 4, 4), torch.nan)}, "decode", "image_or_latent is all NaN or infinite"),
    ({"samples": torch.zeros(1, 8, 4, 4, dtype=torch.int32)}, "decode", "image_or_latent is a LATENT of int32"),
    (torch.zeros(1, 8, 8, 3, dtype=torch.uint8), "encode", "image_or_latent is an IMAGE of uint8"),
    (latent(), "invert", "operation is 'invert': choose one of decode, encode, round trip"),
])
def test_wrong_input_is_named(thing, operation, says):
    with pytest.raises(values.Unfit) as caught:
        parity(ToyVAE(), thing, operation)
    assert says in str(caught.value) and "\n" not in str(caught.value)


@pytest.mark.parametrize("change, says", [
    ({"size": "x"}, "size is the str 'x'"), ({"size": None}, r"size is nothing \(None\)"),
    ({"frames": "x"}, "frames is the str 'x'"), ({"frames": None}, r"frames is nothing \(None\)"),
    ({"size": 0}, "size is 0"), ({"frames": -1}, "frames is -1"), ({"region": "corner"}, "region is 'corner'"),
    ({"region": torch.zeros(3, 3)}, "region is of type Tensor: choose one of whole, centre crop, tiles"),
    ({"operation": torch.zeros(3, 3)}, "operation is of type Tensor: choose one of decode, encode, round trip"),
    ({"operation": ["decode"]}, "operation is of type list"),
    ({"operation": "x" * 500}, "operation is 'x{36}...: choose"),
])
def test_wrong_settings_are_named(change, says):
    with pytest.raises(values.Unfit, match=says):
        parity(ToyVAE(), latent(), **change)


def no_method(vae):
    vae.encode = None


def no_model_method(vae):
    vae.first_stage_model.encode = None


def no_encoder(vae):
    vae.first_stage_model.encoder = None


def deleted_encoder(vae):
    del vae.first_stage_model.encoder


def not_implemented(vae):
    def encode(pixels):
        raise NotImplementedError

    vae.first_stage_model.encode = encode


@pytest.mark.parametrize("operation", ["encode", "round trip"])
@pytest.mark.parametrize("remove", [no_method, no_model_method, no_encoder, deleted_encoder,
                                    not_implemented])
def test_a_vae_without_encoder_is_named(remove, operation):
    vae = ToyVAE()
    remove(vae)
    with pytest.raises(values.ParityError) as caught:
        parity(vae, image(), operation)
    assert str(caught.value).startswith("This VAE (Model) has no encoder, so 'encode' can't be checked: choose ")
    if remove is not not_implemented:
        assert parity(vae, latent()).comparison.metrics.psnr > 25, "and it still decodes"


def test_something_that_is_no_vae_is_named():
    with pytest.raises(values.ParityError, match=r"vae \(SimpleNamespace\) holds no torch module"):
        parity(types.SimpleNamespace(decode=lambda z: z), latent())


@pytest.mark.parametrize("vae, thing, says", [
    (ToyVAE, latent(1, 16, 8, 8), r"shape \(1, 16, 8, 8\) and this VAE \(Model\) decodes \[B, 8, H, W\]: connect a"),
    (VideoVAE, latent(1, 4, 2, 8, 8), r"shape \(1, 4, 2, 8, 8\) and this VAE \(Model\) decodes \[B, 8, T, H, W\]"),
    (VideoVAE, latent(1, 8, 8, 8), r"shape \(1, 8, 8, 8\) and this VAE \(Model\) decodes \[B, 8, T, H, W\]"),
])
@pytest.mark.parametrize("operation", ["decode", "round trip"])
def test_a_latent_of_another_vae_is_named(vae, thing, says, operation):
    with pytest.raises(values.ParityError, match="image_or_latent is a LATENT of " + says):
        parity(vae(), thing, operation)


def test_what_a_vae_raises_for_its_own_latent_is_left_as_it_is():
    class Failing(ToyVAE):
        def decode(self, latent):
            raise IndexError("its own")

    with pytest.raises(IndexError, match="^its own$"):
        parity(Failing(), latent())


def test_memory_is_spoken_of_before_the_input_is_looked_at():
    """However large it is; and what is looked at is what runs, until a number is found."""
    seen, ticks = [], []

    class Seeing(torch.overrides.TorchFunctionMode):
        def __torch_function__(self, func, types, args=(), kwargs=None):
            if func is torch.Tensor.isfinite:
                seen.append(args[0].numel())
            return func(*args, **(kwargs or {}))

    huge = {"samples": torch.zeros(1, 1, 1, 1).expand(1, 8, 20000, 20000)}
    with Seeing():
        with pytest.raises(values.ParityError, match="That does not fit"):
            parity(ToyVAE(), huge, hooks=Hooks(tick=lambda: ticks.append(1)), available=1)
        assert seen == ticks == []
        parity(ToyVAE(), huge, region="centre crop", size=32)
    assert max(seen) <= 1 << 20


@pytest.mark.parametrize("region", ["whole", "centre crop", "tiles"])
def test_what_is_run_must_hold_a_number(region):
    thing = latent(1, 8, 16, 16)
    thing["samples"][:] = torch.nan
    with pytest.raises(values.ParityError, match=r"image_or_latent is all NaN or infinite \(LATENT of shape"):
        parity(ToyVAE(), thing, region=region)
    thing["samples"][..., 8:] = 0.5
    assert parity(ToyVAE(), thing, region=region)


def test_weights_that_are_nan_are_told_from_a_device_that_makes_nan():
    vae = ToyVAE()
    vae.first_stage_model.scale.fill_(torch.nan)
    with pytest.raises(values.ParityError, match="^Both sides, the CPU in float32 too, gave nothing but NaN for"):
        parity(vae, latent())


def test_progress_only_grows_and_ends_at_one():
    shown = []
    parity(ToyVAE(), latent(2, 8, 16, 24), region="tiles", hooks=Hooks(progress=shown.append))
    assert shown == sorted(shown) and shown[-1] == 1
    assert len([fraction for fraction in shown if 0.1 < fraction < 1]) > 10, "and moves inside the CPU side"


@pytest.mark.parametrize("share", [0, 0.01, 0.3, 0.7, 0.95])
def test_cancel_stops_at_once_and_leaves_nothing(share, monkeypatch):
    """Raised by the tick, as ComfyUI's interrupt is: on either side, between any two torch calls."""
    ticks = []
    parity(ToyVAE(), latent(2, 8, 16, 24), "decode", "tiles", hooks=Hooks(tick=lambda: ticks.append(1)))
    after = int(share * len(ticks))
    copies = []
    enter = cpu_copy.CpuCopy.__enter__

    def entered(self):
        twin = enter(self)
        copies.append(weakref.ref(twin.first_stage_model))
        return twin

    monkeypatch.setattr(cpu_copy.CpuCopy, "__enter__", entered)
    ticks.clear()

    class Interrupted(Exception):
        """Stands for ComfyUI's InterruptProcessingException."""

    def tick():
        ticks.append(1)
        if len(ticks) > after:
            raise Interrupted

    with pytest.raises(Interrupted):
        parity(ToyVAE(), latent(2, 8, 16, 24), "decode", "tiles", hooks=Hooks(tick=tick))
    assert len(ticks) == after + 1
    assert torch.overrides._get_current_function_mode_stack() == []
    assert len(copies) == (share > 0.5)
    gc.collect()
    assert all(copied() is None for copied in copies)


def test_the_copy_is_gone_afterwards(monkeypatch):
    copies = []
    enter = cpu_copy.CpuCopy.__enter__

    def entered(self):
        twin = enter(self)
        copies.append(weakref.ref(next(twin.first_stage_model.parameters())))
        return twin

    monkeypatch.setattr(cpu_copy.CpuCopy, "__enter__", entered)
    parity(ToyVAE(), latent())
    gc.collect()
    assert len(copies) == 1 and copies[0]() is None


def test_nan_on_the_device_alone_is_told_apart():
    with pytest.raises(values.ParityError, match="cpu float16 gave nothing but NaN for 'decode' and the CPU"):
        parity(ToyVAE(torch.float16, fault=float("nan")), latent())


def test_a_vae_that_does_not_run_what_it_holds_is_refused():
    """Comparing the device with itself would always pass."""
    hidden = ToyVAE()
    vae = types.SimpleNamespace(first_stage_model=Model(), decode=lambda z: hidden.decode(z))
    with pytest.raises(values.ParityError, match="runs weights that are not among its attributes"):
        parity(vae, latent())


class PixelSpace(torch.nn.Module):
    """As ComfyUI's "pixel_space": its one parameter takes no part, picture and latent are the same numbers."""

    def __init__(self):
        super().__init__()
        self.pixel_space_vae = torch.nn.Parameter(torch.tensor(1.0))

    def encode(self, x):
        return x

    decode = encode


@pytest.mark.parametrize("operation, thing", [
    ("decode", latent(1, 3, 8, 8)), ("encode", image()), ("round trip", image()),
])
def test_a_vae_whose_weights_take_no_part_is_compared(operation, thing):
    vae = ToyVAE()
    vae.first_stage_model = PixelSpace()
    done = parity(vae, thing, operation)
    assert 40 < done.comparison.metrics.psnr < 70, "bfloat16 on one side, float32 on the other"


def test_a_module_without_weights_hides_none():
    hidden = ToyVAE()
    vae = types.SimpleNamespace(first_stage_model=torch.nn.Identity(), decode=lambda z: hidden.decode(z))
    with pytest.raises(values.ParityError, match="runs weights that are not among its attributes"):
        parity(vae, latent())


def test_an_attribute_error_of_another_kind_reaches_the_user_as_it_is():
    vae = ToyVAE()
    vae.decode = lambda z: z.no_such_thing
    with pytest.raises(AttributeError, match="no_such_thing"):
        parity(vae, latent())


def test_a_vae_that_cannot_be_copied_is_named():
    vae = ToyVAE()
    vae.first_stage_model.lock = threading.Lock()
    with pytest.raises(values.ParityError, match=r"Model can't be copied to the CPU \(TypeError: cannot pickle"):
        parity(vae, latent())


def test_a_copy_that_does_not_run_in_float32_is_named():
    vae = ToyVAE()
    vae.first_stage_model.decode = lambda z: vae.first_stage_model.decoder(z.bfloat16())
    with pytest.raises(values.ParityError, match="runs weights that are not|copy of this VAE does not run"):
        parity(vae, latent())


@pytest.mark.parametrize("result, says", [(None, "gave NoneType"), (torch.zeros(3), r"gave shape \(3,\)")])
def test_a_result_that_is_no_picture_is_named(result, says):
    vae = ToyVAE()
    vae.decode = lambda z: result
    with pytest.raises(values.ParityError, match=f"The VAE's decode {says}"):
        parity(vae, latent())


def test_an_error_of_the_vae_itself_reaches_the_user_as_it_is():
    vae = ToyVAE()

    def decode(z):
        raise RuntimeError("MPS backend out of memory")

    vae.decode = decode
    with pytest.raises(RuntimeError, match="^MPS backend out of memory$"):
        parity(vae, latent())
