"""MetalParityCompare and MetalParityVAE: are these two the same, and does this VAE give what the CPU gives?"""
from comfy_api.latest import io, ui

from ..progress import hooks, tick
from . import plan, report
from .compare import compare
from .pictures import as_images
from .vae import DECODE, OPERATIONS, Request, parity
from .verdict import Tolerances

# dB. ComfyUI fills in no default of an optional input that a prompt leaves out: `execute` has the same ones.
COMPARE_PSNR, VAE_PSNR = 40.0, 25.0


def _tolerances(min_psnr):
    """The inputs that decide pass or fail, the same on both nodes."""
    unchecked = " 0: not checked."
    small = {"default": 0.0, "min": 0.0, "max": 1e9, "step": 1e-6, "round": False, "optional": True}
    return [
        io.Float.Input("min_psnr", default=min_psnr, min=0.0, max=1000.0, step=0.1, optional=True,
                       tooltip="Fail below this peak signal-to-noise ratio in dB. Two float32 results usually agree to "
                       "60 dB and more, 16-bit ones to 30 to 50." + unchecked),
        io.Float.Input("max_abs_error", **small,
                       tooltip="Fail when any element differs by more than this." + unchecked),
        io.Float.Input("max_rel_error", **small,
                       tooltip="Fail when any element differs by more than this part of the reference's magnitude "
                       "(taken as at least a thousandth of the data range)." + unchecked),
        io.Float.Input("min_cosine", default=0.0, min=0.0, max=1.0, step=1e-6, round=False, optional=True,
                       tooltip="Fail below this cosine between the two, seen as long vectors." + unchecked),
        io.Boolean.Input("exact", default=False, optional=True, tooltip="Fail unless every element is equal."),
        io.Float.Input("data_range", **small,
                       tooltip="What PSNR is measured against. 0 chooses: 1 for images and masks, for latents and "
                       "other tensors the distance from least to greatest element of the reference."),
    ]  # fmt: skip


def _outputs():
    return [
        io.String.Output("report", tooltip="The numbers and the verdict for people."),
        io.String.Output("json", tooltip="The same for programs. Infinite numbers are null."),
        io.Boolean.Output("passed", tooltip="Whether every tolerance is kept."),
        io.Image.Output("difference", tooltip="Both sides and their difference, amplified; a batch's worst pictures."),
        io.Float.Output("psnr", tooltip="In dB; infinite when there is no difference."),
    ]


def _shown(cls, text, picture):
    return {**ui.PreviewImage(picture, cls=cls).as_dict(), **ui.PreviewText(text).as_dict()}


class MetalParityCompare(io.ComfyNode):
    @classmethod
    def define_schema(cls):
        return io.Schema(
            node_id="MetalParityCompare",
            display_name="Metal Parity Compare",
            category="Metal Kernels",
            description="Says how far two images, latents, masks, videos or other tensors are apart: PSNR, largest and "
            "mean error, cosine, NaN counts, a picture of the difference, and whether your tolerances are kept.",
            search_aliases=["psnr", "diff", "difference", "compare images", "compare latents", "error", "nan", "mps"],
            inputs=[
                io.AnyType.Input("value", tooltip="What to judge: IMAGE, LATENT, MASK, VIDEO or another tensor."),
                io.AnyType.Input("reference", tooltip="What it should be: the same kind and shape."),
                *_tolerances(COMPARE_PSNR),
            ],
            outputs=_outputs(),
            is_output_node=True,
        )

    @classmethod
    def execute(cls, value, reference, min_psnr=COMPARE_PSNR, data_range=0.0, **tolerances):
        result = compare(value, reference, Tolerances(min_psnr, **tolerances), data_range, tick)
        picture = result.picture.image
        shown = _shown(cls, result.text, picture)
        return io.NodeOutput(result.text, result.json, result.passed, picture, result.metrics.psnr, ui=shown)


class MetalParityVAE(io.ComfyNode):
    @classmethod
    def define_schema(cls):
        return io.Schema(
            node_id="MetalParityVAE",
            display_name="Metal Parity VAE",
            category="Metal Kernels",
            description="Runs a VAE on its device and again on a CPU float32 copy of its own weights, and compares the "
            "two: is the picture that this Mac makes the right one? Says first what the CPU side needs.",
            search_aliases=["vae check", "vae test", "black image", "garbled", "psnr", "cpu reference", "mps"],
            inputs=[
                io.Vae.Input("vae", tooltip="Any image or video VAE."),
                io.MultiType.Input("image_or_latent", [io.Image, io.Latent],
                                   tooltip="An IMAGE to encode, a LATENT to decode; either for a round trip."),
                io.Combo.Input("operation", options=list(OPERATIONS), default=DECODE,
                               tooltip="What is run on both sides. A round trip encodes and decodes an image, or "
                               "decodes and encodes a latent."),
                io.Combo.Input("region", options=list(plan.REGIONS), default=plan.WHOLE,
                               tooltip="The CPU is slow and float32 is large: the centre crop runs one part, tiles run "
                               "all of it part by part in little memory."),
                io.Int.Input("size", default=512, min=16, max=16384, step=8, optional=True,
                             tooltip="Edge of the centre crop or of a tile, in pixels of the picture."),
                io.Int.Input("frames", default=0, min=0, max=100000, optional=True,
                             tooltip="At most this many images, video frames or latent frames. 0: all."),
                *_tolerances(VAE_PSNR),
            ],
            outputs=[
                *_outputs(),
                io.Image.Output("device_image", tooltip="The device's result; false colour for a latent."),
                io.Image.Output("cpu_image", tooltip="The CPU's result; false colour for a latent."),
            ],
            is_output_node=True,
        )  # fmt: skip

    @classmethod
    def execute(cls, vae, image_or_latent, operation, region, size=512, frames=0, min_psnr=VAE_PSNR, data_range=0.0,
                **tolerances):
        request, asked = Request(operation, region, size, frames), Tolerances(min_psnr, **tolerances)
        result = parity(vae, image_or_latent, request, asked, hooks("parity"), data_range)
        final, picture = result.comparison, result.comparison.picture.image
        images = as_images(result.device, result.cpu)
        shown = _shown(cls, result.text, picture)
        text = report.as_json(result.data)
        return io.NodeOutput(result.text, text, final.passed, picture, final.metrics.psnr, *images, ui=shown)
