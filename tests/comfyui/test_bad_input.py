"""Bad input in a real ComfyUI: one clear sentence names the value, the graph stops there, nothing is left switched."""
import pytest
from graphs import check, compare, error, node, pad, switch
from server import Refused

pytestmark = [pytest.mark.comfyui, pytest.mark.timeout(600), pytest.mark.usefixtures("left_as_found")]

SMALL = node("EmptyImage", width=64, height=64, batch_size=2, color=0x808080)
LATENT = node("EmptyLatentImage", width=64, height=64, batch_size=1)
TEXT = node("TestText", text="no tensor")


def tensor(kind):
    return node("TestTensor", kind=kind)


def stopped_by(comfyui, graph, node_id):
    """The sentence with which a node stops `graph`, in which a switch is above all that pads. What hangs on the node
    has not run."""
    graph = graph | {"after": node("TestShow", value=(node_id, 0))}
    entry = comfyui.end(comfyui.queue(graph))
    assert entry["status"]["status_str"] == "error", entry["outputs"]
    said = error(entry)
    assert said["node_id"] == node_id and "after" not in entry["outputs"]
    assert said["exception_type"] in ("ValueError", "metal_kernels.ParityError", "metal_kernels.Unfit")
    sentence = said["exception_message"].strip()
    assert "\n" not in sentence, "and no kernel is named that had no part in it"
    return sentence


@pytest.mark.parametrize("value, reference, says", [
    (SMALL, node("EmptyImage", width=96, height=64, batch_size=2, color=0),
     "value has shape (2, 64, 64, 3) and reference (2, 64, 96, 3): the two must have the same shape, so resize or crop "
     "one of them first."),
    (SMALL, LATENT, "value is an IMAGE and reference is a LATENT: compare two values of the same kind (encode or "
     "decode one of them first)."),
    (SMALL, TEXT, "reference is the str 'no tensor', which holds no tensor to compare: connect an IMAGE, LATENT, MASK, "
     "VIDEO or another output that holds tensors."),
    (tensor("empty image"), SMALL, "value is an empty IMAGE of shape (0, 64, 64, 3): there is nothing to compare."),
    (LATENT, tensor("empty latent"),
     "reference is an empty LATENT of shape (0, 4, 8, 8): there is nothing to compare."),
    (tensor("integer image"), SMALL, "value is an IMAGE of uint8: ComfyUI's images are floats from 0 to 1, so convert "
     "it first (image.float() / 255)."),
    (tensor("NaN image"), SMALL, "value is all NaN (every one of its 24,576 elements), there is nothing to compare: "
     "look for the node that first makes NaN."),
    (SMALL, tensor("NaN image"), "reference is all NaN (every one of its 24,576 elements), there is nothing to compare"
     ": look for the node that first makes NaN."),
    (LATENT, node("EmptyLatentImage", width=128, height=64, batch_size=1),
     "value has shape (1, 4, 8, 8) and reference (1, 4, 8, 16): the two must have the same shape, so resize or crop "
     "one of them first."),
    (tensor("empty mask"), tensor("mask"), "value is an empty MASK of shape (0, 16, 16): there is nothing to compare."),
    (tensor("embedding"), tensor("empty tensor"),
     "reference is an empty TENSOR of shape (1, 7, 0, 5, 6): there is nothing to compare."),
    (tensor("embedding"), tensor("mask"), "value is TENSOR (1, 7, 32, 5, 6) float32 on cpu and reference is MASK "
     "(2, 16, 16) float32 on cpu: compare two values of the same kind and shape."),
    (tensor("integer picture"), SMALL, "value is an IMAGE of uint8: ComfyUI's images are floats from 0 to 1, so "
     "convert it first (image.float() / 255)."),
    (tensor("NaN mask"), tensor("mask"), "value is all NaN (every one of its 512 elements), there is nothing to "
     "compare: look for the node that first makes NaN."),
    (LATENT, tensor("NaN latent"), "reference is all NaN (every one of its 256 elements), there is nothing to compare: "
     "look for the node that first makes NaN."),
], ids=["shapes", "kinds", "text", "empty image", "empty latent", "integer image", "NaN value", "NaN reference",
        "latents' shapes", "empty mask", "empty tensor", "kinds of tensors", "integer picture", "NaN mask",
        "NaN latent"])
def test_what_cannot_be_compared(comfyui, value, reference, says):
    graph = {"a": value, "b": reference, "S": switch(("a", 0), pad="off"), "p": compare("S", "b")}
    assert stopped_by(comfyui, graph, "p") == says


def test_videos_of_different_lengths(comfyui):
    graph = {"a": SMALL, "b": node("EmptyImage", width=64, height=64, batch_size=3, color=0),
             "v": node("CreateVideo", images=("a", 0), fps=8.0), "w": node("CreateVideo", images=("b", 0), fps=8.0),
             "S": switch(("v", 0), pad="off"), "p": compare("S", "w")}
    assert stopped_by(comfyui, graph, "p").startswith("value has shape (2, 64, 64, 3) and reference (3, 64, 64, 3): ")


@pytest.mark.parametrize("inputs, more, says", [
    ({"image_or_latent": ("a", 0)}, {"a": SMALL},
     "operation 'decode' takes a LATENT, but image_or_latent is an IMAGE."),
    ({"image_or_latent": ("a", 0)}, {"a": tensor("empty latent")},
     "image_or_latent is an empty LATENT of shape (0, 4, 8, 8): there is nothing to compare."),
    ({"image_or_latent": ("a", 0)}, {"a": tensor("NaN latent")},
     "image_or_latent is all NaN or infinite (LATENT of shape (1, 4, 8, 8))."),
    ({"image_or_latent": ("a", 0), "operation": "encode"}, {"a": tensor("integer image")},
     "image_or_latent is an IMAGE of uint8: ComfyUI's images are floats from 0 to 1, so convert it first "
     "(image.float() / 255)."),
    ({"image_or_latent": ("a", 0), "operation": "encode"}, {"a": SMALL, "vae": node("TestTinyVAE", encoder=False)},
     "This VAE (AutoencoderKLWan) has no encoder, so 'encode' can't be checked: choose operation 'decode' or load a "
     "VAE that has one."),
    ({"image_or_latent": ("a", 0), "operation": "round trip"}, {"a": SMALL, "vae": node("TestTinyVAE", encoder=False)},
     "This VAE (AutoencoderKLWan) has no encoder, so 'encode' can't be checked: choose operation 'decode' or load a "
     "VAE that has one."),
    ({"image_or_latent": ("a", 0)}, {"a": LATENT, "vae": TEXT},
     "vae (str) holds no torch module, so it can't be copied to the CPU."),
    ({"image_or_latent": ("a", 0), "operation": "encode"}, {"a": tensor("empty image")},
     "image_or_latent is an empty IMAGE of shape (0, 64, 64, 3): there is nothing to compare."),
    ({"image_or_latent": ("a", 0), "operation": "encode"}, {"a": tensor("NaN image")},
     "image_or_latent is all NaN or infinite (IMAGE of shape (2, 64, 64, 3))."),
    ({}, {"vae": node("TestTinyVAE", decoder=False)},
     "This VAE (AutoencoderKLWan) has no decoder, so 'decode' can't be checked: choose operation 'encode' or load a "
     "VAE that has one."),
    ({"image_or_latent": ("a", 0)}, {"a": LATENT},
     "image_or_latent is a LATENT of shape (1, 4, 8, 8) and this VAE (AutoencoderKLWan) decodes [B, 4, T, H, W]: "
     "connect a latent that was made for it."),
    ({"image_or_latent": ("a", 0), "operation": "encode"},
     {"a": node("EmptyImage", width=4, height=64, batch_size=1, color=0)},
     "The input is 4 x 64: this VAE needs at least 8 x 8."),
    ({"image_or_latent": ("a", 0)}, {"a": tensor("embedding")},
     "image_or_latent is TENSOR (1, 7, 32, 5, 6) float32 on cpu: connect an IMAGE [B, H, W, C] or a LATENT."),
    ({"image_or_latent": ("a", 0), "frames": ("n", 0)}, {"a": LATENT, "n": node("TestNumber", number=-1)},
     "frames is -1: give 0 for all of them, or how many."),
    ({"image_or_latent": ("a", 0), "size": ("n", 0)}, {"a": LATENT, "n": node("TestNumber", number=0)},
     "size is 0: give the edge of a crop or tile in pixels."),
    ({"image_or_latent": ("a", 0), "operation": ("n", 0)}, {"a": LATENT, "n": node("TestText", text="paint")},
     "operation is 'paint': choose one of decode, encode, round trip."),
    ({"image_or_latent": ("a", 0), "operation": ("a", 0)}, {"a": tensor("mask")},
     "operation is of type Tensor: choose one of decode, encode, round trip."),
    ({"image_or_latent": ("a", 0), "region": ("n", 0)}, {"a": LATENT, "n": node("TestNumber", number=3)},
     "region is the int 3: choose one of whole, centre crop, tiles."),
], ids=["kind", "empty latent", "NaN latent", "integer image", "no encoder", "no encoder, round trip", "no VAE",
        "empty image", "NaN image", "no decoder", "another VAE's latent", "too small",
        "neither", "frames", "size", "operation", "operation of no text",
        "region"])
def test_what_a_VAE_cannot_be_checked_with(comfyui, inputs, more, says):
    graph = {"vae": node("TestTinyVAE"), **more, "S": switch(("vae", 0), pad="off"), "p": check(vae=("S", 0), **inputs)}
    assert stopped_by(comfyui, graph, "p") == says


@pytest.mark.parametrize("name, number, says", [
    ("min_psnr", -1, "min_psnr is -1: give a number of 0 or more (0 means that it is not checked)."),
    ("max_abs_error", -2, "max_abs_error is -2: give a number of 0 or more (0 means that it is not checked)."),
    ("min_cosine", 2, "min_cosine is 2: a cosine is at most 1."),
    ("max_rel_error", -3, "max_rel_error is -3: give a number of 0 or more (0 means that it is not checked)."),
    ("data_range", -1, "data_range is -1: give a number above zero, or 0 to choose it by the kind of value."),
])
@pytest.mark.parametrize("build", [
    lambda **tolerance: compare("S", "a", **tolerance),
    lambda **tolerance: check(vae=("vae", 0), image_or_latent=("S", 0), operation="encode", **tolerance),
], ids=["compare", "VAE"])
def test_a_negative_tolerance_that_comes_by_a_link(comfyui, build, name, number, says):
    graph = {"vae": node("TestTinyVAE"), "a": SMALL, "n": node("TestNumber", number=number),
             "S": switch(("a", 0), pad="off"), "p": build(**{name: ("n", 0)})}
    assert stopped_by(comfyui, graph, "p") == says


@pytest.mark.parametrize("build", [lambda **tolerance: compare("a", "a", **tolerance),
                                   lambda **tolerance: check(**tolerance)], ids=["compare", "VAE"])
def test_a_negative_tolerance_on_the_widget_is_refused_at_once(comfyui, build):
    with pytest.raises(Refused) as refused:
        comfyui.queue({"vae": node("TestTinyVAE"), "a": SMALL, "p": build(max_abs_error=-0.5)})
    (told,) = refused.value.args[0]["node_errors"]["p"]["errors"]
    assert told["details"] == "max_abs_error" and told["message"] == "Value -0.5 smaller than min of 0.0"


@pytest.mark.parametrize("source, value", [
    (TEXT, "'no tensor'"), (node("TestNumber", number=3), "3"), (tensor("NaN image"), "of type Tensor"),
    (node("TestText", text="off\noff"), r"'off\noff'"), (node("TestText", text=""), "''"),
])
def test_a_switch_with_a_linked_combo_of_an_unknown_value(comfyui, source, value):
    """Among switches that are right: those let go, too."""
    graph = {"t": source, "R": switch(pad="off"), "first": pad("R", seed=801), "T": switch(("first", 0), pad=("t", 0)),
             "p": pad("T", seed=802)}
    assert stopped_by(comfyui, graph, "T") == f"pad of the Metal Kernels Switch is {value}: it must be auto, on or off."


def test_a_switch_linked_to_what_gives_no_combo_is_refused_at_once(comfyui):
    """ComfyUI compares the types of a link's two ends, and its own texts are no combos."""
    with pytest.raises(Refused) as refused:
        comfyui.queue({"t": node("PrimitiveString", value="off"), "S": switch(pad=("t", 0)), "p": pad("S")})
    (told,) = refused.value.args[0]["node_errors"]["S"]["errors"]
    assert told["details"] == "pad, received_type(STRING) mismatch input_type(COMBO)"


def test_the_next_prompt_runs_as_if_nothing_had_happened(comfyui):
    from graphs import by

    graph = {"a": tensor("NaN image"), "S": switch(("a", 0), pad="off"), "q": pad("S", seed=803),
             "p": compare("S", "S")}
    stopped_by(comfyui, graph, "p")
    assert by(comfyui.run({"p": pad(seed=804)}), "p") == "pack"
