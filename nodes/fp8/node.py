"""MetalFP8LoadDiffusionModel, MetalFP8LoadCLIP, MetalFP8LoadCheckpoint and MetalFP8SaveModel."""
from comfy_api.latest import io, ui

from ..progress import hooks
from . import files, load, output, plan, report, save


def _file(name, folder, what):
    tooltip = f"{what}: a safetensors file of models/{folder}."
    return io.Combo.Input(name, options=files.choices(folder), tooltip=tooltip)


def _options():
    """How a file is taken, the same on all three loaders."""
    return [
        io.Combo.Input("quantize", options=list(plan.CHOICES), default=plan.AS_STORED, optional=True,
                       tooltip="As stored: FP8 stays FP8, other weights stay wide. Per tensor, per row: wide matrices "
                       "become FP8 on the way in, with one scale or one for each row (closer to the original)."),
        io.Combo.Input("format", options=list(plan.FP8.values()), default="float8_e4m3fn", optional=True,
                       tooltip="What is quantised becomes this. e4m3fn is the closer one for weights."),
        _leave_alone(),
    ]  # fmt: skip


def _leave_alone():
    return io.String.Input("leave_alone", default=plan.LEAVE_ALONE, multiline=True, optional=True,
                           tooltip="Layers that are not quantised: one pattern a line, * for anything, fitted to the "
                           "end of a layer's name. Layers that are FP8 already stay FP8.")  # fmt: skip


def _report():
    return io.String.Output("report", tooltip="Bytes on disk and resident, layers per format, what was left alone.")


def _device():
    return io.Combo.Input("device", options=[load.DEVICE, load.CPU], default=load.DEVICE, optional=True,
                          tooltip="Where the text encoder runs. The CPU leaves the device's memory to the model.")


def _where(clip):
    return f"{clip.patcher.load_device}" if clip is not None else None


def _shown(text):
    return ui.PreviewText(text)


class MetalFP8LoadDiffusionModel(io.ComfyNode):
    @classmethod
    def define_schema(cls):
        return io.Schema(
            node_id="MetalFP8LoadDiffusionModel",
            display_name="Metal FP8 Load Diffusion Model",
            category="Metal Kernels",
            description="Loads a diffusion model at one byte a weight: FP8 files of every kind as they are stored, and "
            "16-bit files quantised on the way in. Says what it takes before it loads, and refuses what is broken.",
            search_aliases=["fp8", "unet loader", "e4m3fn", "scaled fp8", "comfy_quant", "quantize", "flux", "wan"],
            inputs=[_file("model_name", "diffusion_models", "The diffusion model"), *_options()],
            outputs=[io.Model.Output("model", tooltip="The model; LoRA and all else go on it as usual."), _report()],
        )

    @classmethod
    def execute(cls, model_name, **options):
        result = load.diffusion_model(model_name, plan.Options(**options), hooks("FP8"))
        text = report.loaded(result)
        return io.NodeOutput(result.result, text, ui=_shown(text))


class MetalFP8LoadCLIP(io.ComfyNode):
    @classmethod
    def define_schema(cls):
        more = [files.NONE, *files.choices("text_encoders")]
        return io.Schema(
            node_id="MetalFP8LoadCLIP",
            display_name="Metal FP8 Load CLIP",
            category="Metal Kernels",
            description="Loads one to four text encoders at one byte a weight, on the device or on the CPU as you "
            "choose: FP8 files as they are stored, 16-bit files quantised on the way in.",
            search_aliases=["fp8", "clip loader", "dual clip loader", "t5xxl", "umt5", "text encoder", "quantize"],
            inputs=[
                _file("clip_name", "text_encoders", "The text encoder"),
                io.Combo.Input("type", options=load.clip_types(), default="flux",
                               tooltip="The kind of model that it is for, as on ComfyUI's own loaders."),
                _device(),
                *(io.Combo.Input(f"clip_name{n}", options=more, default=files.NONE, optional=True,
                                 tooltip="Another one, for models that use several.") for n in (2, 3, 4)),
                *_options(),
            ],
            outputs=[io.Clip.Output("clip", tooltip="The text encoder."), _report()],
        )  # fmt: skip

    @classmethod
    def execute(cls, clip_name, type, device=load.DEVICE, clip_name2=files.NONE, clip_name3=files.NONE,
                clip_name4=files.NONE, **options):  # fmt: skip
        names = [clip_name, *(name for name in (clip_name2, clip_name3, clip_name4) if name != files.NONE)]
        result = load.clip(names, type, device, plan.Options(**options), hooks("FP8"))
        text = report.loaded(result, _where(result.result))
        return io.NodeOutput(result.result, text, ui=_shown(text))


class MetalFP8LoadCheckpoint(io.ComfyNode):
    @classmethod
    def define_schema(cls):
        return io.Schema(
            node_id="MetalFP8LoadCheckpoint",
            display_name="Metal FP8 Load Checkpoint",
            category="Metal Kernels",
            description="Loads a checkpoint, model and text encoder at one byte a weight: FP8 as it is stored, 16-bit "
            "weights quantised on the way in. The VAE is left as it is.",
            search_aliases=["fp8", "checkpoint loader", "ckpt", "e4m3fn", "quantize"],
            inputs=[_file("ckpt_name", "checkpoints", "The checkpoint"), _device(), *_options()],
            outputs=[
                io.Model.Output("model", tooltip="The diffusion model."),
                io.Clip.Output("clip", tooltip="The text encoder, if the file has one."),
                io.Vae.Output("vae", tooltip="The VAE, if the file has one."),
                _report(),
            ],
        )

    @classmethod
    def execute(cls, ckpt_name, device=load.DEVICE, **options):
        result = load.checkpoint(ckpt_name, device, plan.Options(**options), hooks("FP8"))
        text = report.loaded(result, _where(result.result[1]))
        return io.NodeOutput(*result.result, text, ui=_shown(text))


class MetalFP8SaveModel(io.ComfyNode):
    @classmethod
    def define_schema(cls):
        return io.Schema(
            node_id="MetalFP8SaveModel",
            display_name="Metal FP8 Save Model",
            category="Metal Kernels",
            description="Quantises a MODEL, LoRAs included, and writes it as a comfy_quant safetensors file that "
            "ComfyUI on any platform loads. What is FP8 already is written as it is.",
            search_aliases=["fp8", "save model", "export", "convert", "quantize", "comfy_quant"],
            inputs=[
                io.Model.Input("model", tooltip="What to save."),
                io.String.Input("filename_prefix", default="diffusion_models/ComfyUI_fp8",
                                tooltip="Where in ComfyUI's output folder; a number is added."),
                io.Combo.Input("format", options=list(plan.FP8.values()), default="float8_e4m3fn", optional=True,
                               tooltip="What is quantised becomes this, with one scale a layer."),
                _leave_alone(),
            ],
            outputs=[
                io.String.Output("path", tooltip="The file that was written."),
                _report(),
            ],
            is_output_node=True,
        )  # fmt: skip

    @classmethod
    def execute(cls, model, filename_prefix, **options):
        result = save.save(model, output.path(filename_prefix), plan.Options(**options), hooks("FP8"))
        text = report.saved(result)
        return io.NodeOutput(result.path, text, ui=_shown(text))
