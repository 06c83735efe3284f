"""ComfyUI's own loaders, held to the rule of this pack's: no weight is used without its scale.

Three functions of comfy.sd, which UNETLoader, CheckpointLoaderSimple, CLIPLoader and the like call with a path:

* A safetensors file that is damaged, or whose scales are, is refused in one sentence before anything of it is loaded.
* Some text encoders (CLIP-L, CLIP-G) don't look whether their file is quantised, and take its values for the weights.
  That is seen after the load; they are then loaded again, and told.
* What still did not get its scale is refused, and unloaded.

And comfy.utils.convert_old_quants, by which ComfyUI learns which weights have scales: see `texts`. And
comfy.utils.set_attr_param, which takes a LoRA out again: after "Unload models" and a further run it fails on quantised
weights.

Loads with operations of somebody else's own (`custom_operations`) are left alone, as is everything while the kernel
`fp8` is switched off.
"""
import functools
import importlib
import inspect
import logging
import os

import torch

from .. import library
from . import found, layers, texts
from .files import ENDINGS
from .formats import FORMATS
from .header import ModelFileError, Unfamiliar, read
from .mapped import Mapped
from .projection import MIXED, project

log = logging.getLogger("metal_kernels")

_undo = []
_state = {"problems": []}


def install():
    """Stand before ComfyUI's functions, once. Never raises; `problems()` has what could not be done."""
    if _undo:
        return
    _state["problems"] = []
    for path, name, ours, needed in (
        ("comfy.sd", "load_diffusion_model", _diffusion_model, ("unet_path", "model_options")),
        ("comfy.sd", "load_clip", _clip, ("ckpt_paths", "model_options")),
        ("comfy.sd", "load_checkpoint_guess_config", _checkpoint,
         ("ckpt_path", "output_vae", "output_model", "model_options", "te_model_options")),
        ("comfy.utils", "convert_old_quants", _old_quants, ("state_dict",)),
        ("comfy.utils", "set_attr_param", _parameter, ("value",)),
    ):  # fmt: skip
        try:
            if library.metal_kernels is None or library.metal_kernels.obstacle() is not None:
                return  # the status says why nothing at all is patched
            _stand_before(importlib.import_module(path), name, ours, needed)
        except Exception as error:
            _state["problems"].append(
                f"FP8 files are not checked in {path}.{name}, which is not as it was ({type(error).__name__}: {error})"
            )
    for problem in _state["problems"]:
        log.warning("Metal Kernels: %s", problem)


def uninstall():
    """Leave ComfyUI's functions as they were found. Under another pack's wrapper ours stays, and only passes on."""
    while _undo:
        _undo.pop()()


def problems():
    """Sentences: which of ComfyUI's functions is not stood before, and why."""
    return list(_state["problems"])


def _stand_before(owner, name, ours, needed):
    original, awake = getattr(owner, name), [True]
    signature = inspect.signature(original)
    missing = [each for each in needed if each not in signature.parameters]
    if missing:
        raise TypeError(f"it takes no {missing[0]}")

    @functools.wraps(original)
    def function(*args, **kwargs):
        if not awake or library.metal_kernels.modes().get("fp8") == "off":
            return original(*args, **kwargs)
        given = signature.bind(*args, **kwargs)
        given.apply_defaults()
        return ours(lambda **more: original(*given.args, **given.kwargs) if not more else original(
            **{**given.arguments, **more}), given.arguments)

    def undo():
        awake.clear()
        if getattr(owner, name) is function:
            setattr(owner, name, original)

    setattr(owner, name, function)
    _undo.append(undo)


def _diffusion_model(load, given):
    if _own(given["model_options"]):
        return load()
    expected = checked([given["unet_path"]])
    model = load()
    _refuse(given["unet_path"], found.lost([model.model.diffusion_model], expected), model)
    return model


def _clip(load, given):
    if _own(given["model_options"]):
        return load()
    expected = checked(given["ckpt_paths"])
    encoder = load()
    if found.lost([encoder.cond_stage_model], expected):
        _unload(encoder)
        encoder = None  # its memory goes before the next comes
        encoder = load(model_options={**(given["model_options"] or {}), **MIXED})
        _refuse(given["ckpt_paths"][0], found.lost([encoder.cond_stage_model], expected), encoder)
    project(encoder.cond_stage_model)
    return encoder


def _checkpoint(load, given):
    if _own(given["model_options"]) or _own(given["te_model_options"]):
        return load()
    path, options = given["ckpt_path"], given["te_model_options"] or {}
    expected = checked([path])
    model, encoder, *more = load()
    if encoder is not None and found.lost([encoder.cond_stage_model], expected):
        _unload(encoder)
        encoder = None
        _, encoder, *_ = load(output_model=False, output_vae=False, te_model_options={**options, **MIXED})
    if encoder is not None:
        project(encoder.cond_stage_model)
    _refuse(path, found.lost(list(_modules(model, encoder, *more)), expected), model, encoder)
    return (model, encoder, *more)


def _modules(model, encoder, vae=None, vision=None, *_):
    """The torch modules in what a checkpoint became; each part may be missing."""
    if model is not None:
        yield model.model.diffusion_model
    for part, name in (encoder, "cond_stage_model"), (vae, "first_stage_model"), (vision, "model"):
        if getattr(part, name, None) is not None:
            yield getattr(part, name)


def _old_quants(load, given):
    before = texts.names(given["state_dict"])
    result = load()
    state = result[0] if isinstance(result, tuple) else result
    if layers.METADATA not in (given.get("metadata") or {}):  # else they are what the file says
        texts.put_right(state, sorted(texts.names(state) - before))
    texts.complete(state)
    return result


def _parameter(put, given):
    """"Unload models" puts weights back outside torch's inference mode; within it, where the next prompt takes them
    out again, a quantised tensor of that kind can't become a parameter. A copy can, of one layer at a time."""
    value = given["value"]
    if hasattr(value, "storage_dtype") and torch.is_inference_mode_enabled() and not value.is_inference():
        return put(value=value.clone())
    return put()


def _own(options):
    """Whether somebody loads with operations of their own, which know best what their files mean."""
    return (options or {}).get("custom_operations") is not None


def checked(paths):
    """The layers of these files whose values mean nothing without a scale, as `found.Stored`.

    Raises ModelFileError for a file that is damaged in any loader's eyes. What is no safetensors file by its name, or
    holds what only this pack's loaders don't know, is ComfyUI's to judge.
    """
    from comfy.quant_ops import QUANT_ALGOS

    expected = []
    for path in paths:
        if path.lower().endswith(ENDINGS):
            try:
                header = read(path)
                mapped = Mapped(header)
                recognised = layers.recognise(header, mapped, QUANT_ALGOS, strict=False)
            except Unfamiliar:
                continue
            expected += [_stored(mapped, layer) for layer in recognised.values()]
    return [layer for layer in expected if layer is not None]


def _stored(mapped, layer):
    fp8 = layer.format in FORMATS
    if fp8 and layer.scale is None:
        return None
    return found.stored(layer.name, mapped.tensor(layer.weight), mapped.tensor(layer.scale) if fp8 else None)


def _refuse(path, lost, *patchers):
    """Raise ModelFileError where layers are `lost`, with nothing of what was loaded left."""
    if not lost:
        return
    _unload(*patchers)
    names = ", ".join(lost[:3]) + (" and more" if len(lost) > 3 else "")
    raise ModelFileError(
        f"{os.path.basename(path)}: ComfyUI takes no scale for {len(lost)} layers of this file, {names}, and would use "
        "them unscaled. Load it with one of the Metal FP8 nodes."
    )


def _unload(*patchers):
    """Off their devices, and off ComfyUI's list of what is loaded."""
    from comfy import model_management

    ours = [getattr(each, "patcher", each) for each in patchers if each is not None]
    others = [each for each in model_management.current_loaded_models if not any(each.model is one for one in ours)]
    for device in {one.load_device for one in ours}:
        model_management.free_memory(1e30, device, others)
