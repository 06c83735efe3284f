"""The three loads: files in, what ComfyUI's own loaders make of them out.

The loaders are given a state dict (see `state`) in which every quantised weight has its comfy_quant text and its scale.
So the models they build, patchers, LoRA, offloading and saving, are ComfyUI's. A layer that turns out to be nothing
that ComfyUI can hold quantised is loaded again in bfloat16, times its scale: no weight is ever used without it.
"""
import gc
from dataclasses import dataclass, field

from ..progress import Hooks
from . import files, formats, found, layers, memory, scales, state
from .header import Header, ModelFileError, read
from .mapped import Mapped
from .plan import Options, Plan, make
from .projection import MIXED, project

DEVICE, CPU = "device", "cpu"
ALSO = {"sdxl": "stable_diffusion"}  # ComfyUI's loaders offer it, and tell it by the files: it is no kind of its own


@dataclass
class Source:
    """One file on its way in. `failed`: layers that could not be quantised; `lost`: those that are no place for FP8."""

    header: Header
    mapped: Mapped
    layers: dict
    plan: Plan = None
    failed: list = field(default_factory=list)
    lost: list = field(default_factory=list)

    def scaled(self, made):
        """Layers of the state dict `made` whose values mean nothing without a scale, as `found.Stored`."""
        given = []
        for name in (*self.plan.layers, *(name for name in self.plan.quantized if name not in self.failed)):
            layer = self.plan.layers.get(name)
            fp8 = layer is None or layer.format in formats.FORMATS
            scale = made[f"{name}.{scales.SCALES[0]}"] if fp8 else None  # 1 where the file has none
            given.append(found.stored(name, made[f"{name}.weight"], scale))
        return [layer for layer in given if layer is not None]


@dataclass(frozen=True)
class Loaded:
    """What came out: `result` as ComfyUI's loader gives it, `modules` the torch modules with the weights."""

    result: object
    modules: list
    sources: list
    options: Options
    kind: str
    warning: str | None = None


def diffusion_model(name, options, hooks=None):
    """`Loaded` with the MODEL of a file of the folder diffusion_models."""
    from comfy import sd

    def build(states, sources):
        metadata = _metadata(sources[0])
        model = sd.load_diffusion_model_state_dict(states[0], metadata=metadata)
        if model is None:
            raise ModelFileError(f"{name} holds no diffusion model that this ComfyUI knows.")
        return model, [model.model.diffusion_model]

    loaded = _load("diffusion_models", [name], options, hooks, build, "diffusion model")
    loaded.result.cached_patcher_init = (_again_model, (name, options))
    return loaded


def clip(names, kind, where, options, hooks=None):
    """`Loaded` with the CLIP of one to four files of the folder text_encoders.

    kind   one of `clip_types`, in any case.
    where  "device" or "cpu": where it runs.
    """
    import folder_paths
    from comfy import sd

    chosen = getattr(sd.CLIPType, ALSO.get(str(kind).lower(), str(kind)).upper(), None)
    if chosen is None:
        raise ModelFileError(f"type is {kind!r}: it must be one of {', '.join(clip_types())}.")

    def build(states, sources):
        given = model_options(where, any(one.plan.layers or one.plan.quantized for one in sources))
        encoder = sd.load_text_encoder_state_dicts(
            states, embedding_directory=folder_paths.get_folder_paths("embeddings"), clip_type=chosen,
            model_options=given,
        )  # fmt: skip
        project(encoder.cond_stage_model)
        return encoder, [encoder.cond_stage_model]

    loaded = _load("text_encoders", names, options, hooks, build, "text encoder")
    loaded.result.patcher.cached_patcher_init = (_again_clip, (names, kind, where, options))
    return loaded


def checkpoint(name, where, options, hooks=None):
    """`Loaded` with (MODEL, CLIP, VAE) of a file of the folder checkpoints; CLIP or VAE may be None."""
    import folder_paths
    from comfy import sd

    def build(states, sources):
        quantized = bool(sources[0].plan.layers or sources[0].plan.quantized)
        out = sd.load_state_dict_guess_config(
            states[0], embedding_directory=folder_paths.get_folder_paths("embeddings"), metadata=_metadata(sources[0]),
            te_model_options=model_options(where, quantized),
        )  # fmt: skip
        if out is None or out[0] is None:
            raise ModelFileError(f"{name} holds no checkpoint that this ComfyUI knows.")
        model, encoder, vae = out[:3]
        modules = [model.model.diffusion_model]
        if encoder is not None:
            project(encoder.cond_stage_model)
            modules.append(encoder.cond_stage_model)
        stage = getattr(vae, "first_stage_model", None)
        return (model, encoder, vae), modules + ([stage] if stage is not None else [])

    loaded = _load("checkpoints", [name], options, hooks, build, "checkpoint")
    model, encoder, vae = loaded.result
    model.cached_patcher_init = (_again_checkpoint, (name, where, options), 0)
    for index, part in (1, encoder), (2, vae):
        if getattr(part, "patcher", None) is not None:
            part.patcher.cached_patcher_init = (_again_checkpoint, (name, where, options), index)
    return loaded


def clip_types():
    """The names of ComfyUI's kinds of text encoders, as its own loaders spell them."""
    from comfy import sd

    names = [kind.name.lower() for kind in sd.CLIPType]
    return names + [name for name in ALSO if name not in names]


def model_options(where, quantized):
    """What ComfyUI's CLIP is told: where to run, and that some layers are quantised (CLIP-L and -G don't look)."""
    import torch
    from comfy import model_management

    if where not in (DEVICE, CPU):
        raise ModelFileError(f"device is {where!r}: it must be {DEVICE} or {CPU}.")
    cpu = torch.device("cpu")
    on = cpu if where == CPU else model_management.get_torch_device()
    options = {"load_device": on, "offload_device": cpu, "initial_device": cpu}
    return {**options, **(MIXED if quantized else {})}


def _load(folder, names, options, hooks, build, kind):
    """Read and check everything first, say what it takes, then build; twice where a layer can't hold FP8."""
    from comfy import model_management
    from comfy.quant_ops import QUANT_ALGOS

    hooks = hooks or Hooks()
    sources = []
    for name in names:
        head = read(files.find(folder, name), name)
        mapped = Mapped(head)
        sources.append(Source(head, mapped, layers.recognise(head, mapped, QUANT_ALGOS)))
    for source in sources:
        source.plan = make(source.header, source.layers, options)
    needed = sum(source.plan.resident for source in sources)
    warning = memory.warning(" + ".join(names), needed, memory.limit(), memory.taken())
    if warning:
        hooks.warn(warning)

    device = model_management.get_torch_device()
    for attempt in (0, 1):
        states, scaled = [], []
        for at, source in enumerate(sources):
            part = hooks.part(at / len(sources), (at + 1) / len(sources))
            made, source.failed = state.state_dict(source.mapped, source.plan, options, device, part)
            states.append(made)
            scaled.append(source.scaled(made))
        result, modules = _built(build, states, sources)
        missing = [(source, found.lost(modules, each)) for source, each in zip(sources, scaled, strict=True)]
        if not any(names for _, names in missing):
            hooks.progress(1.0)
            return Loaded(result, modules, sources, options, kind, warning)
        result = modules = states = None
        gc.collect()  # ComfyUI's models are cycles: the first attempt's memory has to go before the second
        if attempt:
            break
        for source, names in missing:
            _refuse_other_formats(source, names)
            source.lost = names
            source.plan = make(source.header, source.layers, options, frozenset(names))
    name, lost = next((source.header.name, names) for source, names in missing if names)
    raise ModelFileError(f"{name}: ComfyUI did not take the scale of {len(lost)} layers, {_some(lost)}.")


def _built(build, states, sources):
    """`build`, with ComfyUI's own errors made a sentence with the file's name; out of memory and cancel pass."""
    from comfy import model_management

    try:
        return build(states, sources)
    except ModelFileError:
        raise
    except (RuntimeError, ValueError, KeyError, IndexError, TypeError, AttributeError) as problem:
        if model_management.is_oom(problem) or "out of memory" in str(problem):
            raise
        names = " + ".join(source.header.name for source in sources)
        text = " ".join(str(problem).split())
        raise ModelFileError(f"ComfyUI can't load {names}: {type(problem).__name__}: {text:.300}") from problem


def _refuse_other_formats(source, names):
    other = [name for name in names if name in source.layers and source.layers[name].format not in formats.FORMATS]
    if other:
        kind = source.layers[other[0]].format
        raise ModelFileError(f"{source.header.name}: ComfyUI can't hold {_some(other)} in the format {kind}.")


def _metadata(source):
    """The file's metadata for ComfyUI, without what the state dict says already."""
    return {key: value for key, value in source.header.metadata.items() if key != layers.METADATA}


def _some(names):
    return ", ".join(names[:3]) + (" and more" if len(names) > 3 else "")


def _again_model(name, options, **_):
    """A fresh copy, for ComfyUI's clones that share nothing."""
    return diffusion_model(name, options).result


def _again_clip(names, kind, where, options, **_):
    return clip(names, kind, where, options).result.patcher


def _again_checkpoint(name, where, options, **_):
    """Patchers in the places of (MODEL, CLIP, VAE)."""
    model, encoder, vae = checkpoint(name, where, options).result
    return model, getattr(encoder, "patcher", None), getattr(vae, "patcher", None)
