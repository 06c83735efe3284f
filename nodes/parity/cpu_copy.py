"""A CPU float32 copy of a VAE, made from its own weights.

Rebuilding the VAE from its state dict would need its configuration, which many VAEs don't carry in their weights (and
third parties' VAEs are not ComfyUI's at all). So the copy is taken from the object itself: the same attributes, every
module deep-copied with its tensors landing straight on the CPU in float32 (no second copy on the device), every device
the CPU, every floating-point dtype float32, the model patcher one for the copy. `encode` and `decode` then run exactly
the code that the device side runs, on other weights in another place.
"""
import copy
import types

import torch

from .values import ParityError, plain

_FRESH_ACCOUNT = (
    ("model_loaded_weight_memory", 0),
    ("model_lowvram", False),
    ("lowvram_patch_counter", 0),
    ("current_weight_patches_uuid", None),
)


class CpuCopy:
    """`with CpuCopy(vae) as cpu:` gives the copy. On leaving, its weights go and ComfyUI's list of models forgets it.

    Make it after the device's run: LoRA-like patches are in the weights only once ComfyUI has loaded them. `weights`
    are the copy's tensors.
    """

    def __init__(self, vae):
        self.vae = vae
        self.weights = ()
        self._twins = {}

    def __enter__(self):
        memo = {}
        for module in modules_of(self.vae):
            _prepare(module, memo)
        copied = self._replace(self.vae, memo)
        modules = modules_of(copied)
        for module in modules:
            _settle(module)
        self.weights = tuple(weight for module in modules for weight in (*module.parameters(), *module.buffers()))
        return copied

    def __exit__(self, *exception):
        for twin in self._twins.values():
            for patcher in filter(_is_patcher, list(vars(twin).values())):
                _forget(patcher)
            vars(twin).clear()
        self._twins, self.weights = {}, ()

    def _twin(self, vae, memo):
        """A VAE-shaped object with its attributes replaced, made without its own constructor or copy protocol."""
        try:
            twin = self._twins[id(vae)] = type(vae).__new__(type(vae))
        except TypeError as problem:
            raise _not_copied(vae, problem) from problem
        vars(twin).update((name, self._replace(value, memo)) for name, value in vars(vae).items())
        for name, value in vars(vae).items():
            if isinstance(value, types.MethodType) and value.__self__ is vae:
                vars(twin)[name] = types.MethodType(value.__func__, twin)
        if hasattr(type(vae), "vae_output_dtype"):  # the user's choice of what to store is not what is compared
            vars(twin)["vae_output_dtype"] = lambda: torch.float32
        return twin

    def _replace(self, value, memo):
        """A value as the CPU copy needs it; the very same object where nothing needs to change."""
        if isinstance(value, torch.nn.Module):
            return _deepcopied(value, memo)
        if isinstance(value, torch.Tensor):
            return _moved(value)
        if isinstance(value, torch.device):
            return torch.device("cpu")
        if isinstance(value, torch.dtype):
            return torch.float32 if value.is_floating_point else value
        if _is_patcher(value):
            return _patcher(_deepcopied(value.model, memo))
        if _is_vae(value):
            return self._twins[id(value)] if id(value) in self._twins else self._twin(value, memo)
        return value


def modules_of(vae, _within=()):
    """The root modules that a VAE-shaped object holds (ComfyUI's: `first_stage_model`), or that it is. A VAE that wraps
    another holds that one's."""
    if isinstance(vae, torch.nn.Module):
        return [vae]
    found = []
    for value in getattr(vae, "__dict__", {}).values():
        if isinstance(value, torch.nn.Module):
            held = [value]
        elif _is_patcher(value):
            held = [value.model]
        else:
            around = (*_within, vae)
            held = modules_of(value, around) if _is_vae(value) and all(value is not one for one in around) else []
        found += [module for module in held if all(module is not other for other in found)]
    return found


def weight_bytes(vae):
    """Bytes that the copy's weights will take, counting shared ones once."""
    seen = {id(t): t for module in modules_of(vae) for t in (*module.parameters(), *module.buffers())}
    return sum(t.numel() * (4 if t.is_floating_point() else t.element_size()) for t in seen.values())


def _prepare(module, memo):
    """Fill deepcopy's memo with CPU float32 versions of every tensor that the module reaches."""
    for tensor in (*module.parameters(), *module.buffers()):
        if id(tensor) not in memo:
            moved = _moved(tensor)
            memo[id(tensor)] = torch.nn.Parameter(moved, False) if isinstance(tensor, torch.nn.Parameter) else moved
    for part in module.modules():
        for value in vars(part).values():
            _prepare_loose(value, memo, 4)


def _prepare_loose(value, memo, depth):
    """Tensors that are neither parameters nor buffers: caches, scales, what a plain helper object holds."""
    if isinstance(value, torch.Tensor):
        if id(value) not in memo:
            memo[id(value)] = _moved(value)
    elif depth and not isinstance(value, (torch.nn.Module, type, types.ModuleType, types.FunctionType)):
        if isinstance(value, dict):
            inner = value.values()
        elif isinstance(value, (list, tuple, set)):
            inner = value
        else:
            inner = getattr(value, "__dict__", {}).values()
        for entry in list(inner):
            _prepare_loose(entry, memo, depth - 1)


def _moved(tensor):
    # Moved first and cast there: stock MPS has no FP8 casts. Never shares memory with the original.
    moved = plain(tensor).to("cpu", copy=True)
    return moved.to(torch.float32) if moved.is_floating_point() else moved


def _deepcopied(module, memo):
    try:
        return copy.deepcopy(module, memo).eval().requires_grad_(False)
    except Exception as problem:
        raise _not_copied(module, problem) from problem


def _not_copied(part, problem):
    return ParityError(
        f"The VAE's {type(part).__name__} can't be copied to the CPU ({type(problem).__name__}: {problem}): run it "
        "with --cpu in a second ComfyUI and compare the two results with Metal Parity Compare."
    )


def _settle(module):
    """Devices and dtypes that modules keep as plain attributes; patches that a partly loaded model applies per call."""
    for part in module.modules():
        for name, value in list(vars(part).items()):
            if isinstance(value, torch.device):
                vars(part)[name] = torch.device("cpu")
            elif isinstance(value, torch.dtype) and value.is_floating_point:
                vars(part)[name] = torch.float32
        for kind in ("weight", "bias"):
            weight, functions = getattr(part, kind, None), getattr(part, f"{kind}_function", None)
            if isinstance(weight, torch.nn.Parameter) and isinstance(functions, list) and functions:
                for function in functions:
                    weight.data = function(weight.data)
                setattr(part, f"{kind}_function", [])
    # ComfyUI's patcher keeps its account of what is loaded on the model itself.
    for name, fresh in _FRESH_ACCOUNT:
        if name in vars(module):
            vars(module)[name] = fresh


def _is_patcher(value):
    """ComfyUI's ModelPatcher, by what it does: a model and where it is loaded."""
    return hasattr(value, "load_device") and isinstance(getattr(value, "model", None), torch.nn.Module)


def _is_vae(value):
    """Another VAE-shaped object, as wrappers hold one."""
    if isinstance(value, (type, types.ModuleType)) or not isinstance(getattr(value, "__dict__", None), dict):
        return False
    return callable(getattr(value, "decode", None))


def _patcher(model):
    from comfy.model_patcher import ModelPatcher

    cpu = torch.device("cpu")
    return ModelPatcher(model, load_device=cpu, offload_device=cpu)


def _forget(patcher):
    """Take a patcher out of ComfyUI's list of loaded models, as if it had never been there."""
    from comfy import model_management

    for loaded in list(model_management.current_loaded_models):
        if loaded.model is patcher:
            if loaded.model_finalizer is not None:
                loaded.model_finalizer.detach()
            model_management.current_loaded_models[:] = [
                other for other in model_management.current_loaded_models if other is not loaded
            ]
