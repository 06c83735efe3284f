"""What a VAE's CPU side needs, said before it runs: memory, refused when short, and time, first roughly."""
from importlib import import_module

import pytest
from pack import NAME
from parity_runs import Hooks, image, latent, parity
from parity_toys import Model, ToyVAE

estimate = import_module(f"{NAME}.nodes.parity.estimate")
values = import_module(f"{NAME}.nodes.parity.values")


def test_memory_is_stated_first_and_refused_when_short():
    said, vae = [], ToyVAE()
    with pytest.raises(values.ParityError) as caught:
        parity(vae, latent(), hooks=Hooks(say=said.append), available=10_000)
    assert "does not fit: choose region 'tiles' or 'centre crop'" in str(caught.value)
    assert "0 MiB available" in str(caught.value) and "(estimate: weights" in str(caught.value)
    assert len(said) == 1 and said[0] in str(caught.value)
    assert vae.calls == [], "before anything ran"


def test_memory_and_time_are_said_before_either_side_runs():
    said, vae = [], ToyVAE()
    parity(vae, latent(1, 8, 64, 96), hooks=Hooks(say=lambda text: said.append((text, list(vae.calls)))))
    (memory, ran_before), (rough, piece), (better, ran) = said
    assert memory.startswith("The CPU side needs about ") and memory.endswith("available.") and ran_before == []
    assert rough.startswith(memory[:-1]) and "; it takes about " in rough and "(rough estimate" in rough
    assert piece == [("decode", (1, 8, 12, 12))], "a small piece"
    assert "the CPU side takes about" in better and "(estimate)" in better
    assert ran == [*piece, ("decode", (1, 8, 64, 96))]


@pytest.mark.parametrize("operation, thing, region", [
    ("decode", latent(1, 8, 64, 96), "whole"), ("decode", latent(3, 8, 32, 48), "tiles"),
    ("encode", image(2, 192, 256), "whole"), ("round trip", image(1, 192, 256), "centre crop"),
])
def test_the_rough_time_is_of_the_whole(operation, thing, region, monkeypatch):
    """The small piece's arithmetic, scaled, is that of the run: time is estimated from the same two rates."""
    monkeypatch.setattr(estimate, "_rates", lambda: (1e9, 1e8))
    facts = parity(ToyVAE(), thing, operation, region, size=128).data["vae"]
    assert facts["cpu_seconds_estimated_first"] == pytest.approx(facts["cpu_seconds_estimated"], rel=0.2)


def test_a_piece_that_cannot_be_run_is_no_reason_to_refuse():
    class Picky(ToyVAE):
        def decode(self, latent):
            if latent.shape[-1] < 24:
                raise RuntimeError("too small")
            return super().decode(latent)

    said = []
    done = parity(Picky(), latent(), hooks=Hooks(say=said.append))
    assert done.comparison.metrics.psnr > 25 and done.data["vae"]["cpu_seconds_estimated_first"] is None
    assert said[1].endswith("; how long it takes is known once the device has run.")


def test_tiles_need_less_than_the_whole():
    sizes = {}
    for region in ("whole", "tiles"):
        done = parity(ToyVAE(), latent(1, 8, 32, 32), region=region, size=32)
        sizes[region] = done.data["vae"]["cpu_bytes_estimated"]
    assert sizes["tiles"]["activations"] * 2 < sizes["whole"]["activations"]
    assert sizes["tiles"]["weights"] == sizes["whole"]["weights"] == 4 * sum(w.numel() for w in [
        *Model().parameters(), *Model().buffers()])


def test_a_vae_without_formulas_is_estimated_from_its_channels_and_the_picture():
    vae = ToyVAE()
    del vae.memory_used_decode
    found = parity(vae, latent()).data["vae"]["cpu_bytes_estimated"]["activations"]
    assert found == estimate.LIVE_MAPS * 16 * 4 * 64 * 96


def test_unknown_memory_is_no_reason_to_refuse():
    done = parity(ToyVAE(), latent(), available=None)
    assert "unknown available" in done.text and done.data["vae"]["cpu_bytes_available"] is None
