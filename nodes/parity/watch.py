"""Watches one side's run from inside: cancel, progress, arithmetic done, and the same random numbers on every device.

A torch function mode sees each torch call that Python code makes. It is entered for the two runs of a parity check
only, never for anyone else's work.
"""
from dataclasses import dataclass

import torch
from torch.overrides import TorchFunctionMode

F = torch.nn.functional
SEED = 0
# Random sources a VAE may draw from: a posterior's sample, a decoder's noise.
_BY_SHAPE = {torch.randn, torch.rand}
_LIKE = {torch.randn_like: torch.randn, torch.rand_like: torch.rand}
_IN_PLACE = {torch.Tensor.normal_, torch.Tensor.uniform_, torch.Tensor.exponential_, torch.Tensor.bernoulli_}
_CONVOLUTIONS = {F.conv1d, F.conv2d, F.conv3d}
_TRANSPOSED = {F.conv_transpose1d, F.conv_transpose2d, F.conv_transpose3d}
_PRODUCTS = {torch.matmul, torch.bmm, torch.mm, torch.Tensor.matmul, torch.Tensor.__matmul__, torch.Tensor.bmm}


@dataclass
class Work:
    """What a run did: torch calls, elements that they wrote, and multiply-adds counted as two."""

    calls: int = 0
    elements: int = 0
    flops: int = 0

    def add(self, other):
        self.calls += other.calls
        self.elements += other.elements
        self.flops += other.flops

    def scaled(self, size, calls):
        """The same on `size` times as much data, in `calls` times as many runs."""
        return Work(int(self.calls * calls), int(self.elements * size), int(self.flops * size))


class Watch(TorchFunctionMode):
    """Enter round one side's run.

    tick     called before every torch call with the `Work` done so far; raise from it to cancel.
    weights  a CPU copy's tensors: `used` says whether any took part, and until one does `foreign` whether anything else
             did that could hold the result: another module's parameter, a tensor that is not on the CPU.

    `work` is what was done; its flops are those of convolutions, linear layers, products and attention. Random numbers
    come from a private generator on the CPU in float32, so that both sides draw the same and the user's seed stays
    untouched.
    """

    def __init__(self, tick=lambda work: None, weights=None):
        super().__init__()
        self.tick = tick
        self.work = Work()
        self.used = self.foreign = False
        self._weights = None if weights is None else {id(weight) for weight in weights}
        self._generator = torch.Generator("cpu").manual_seed(SEED)

    def __torch_function__(self, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        self.tick(self.work)
        if not self.used and self._weights is not None:
            self._look_for_weights((*args, *kwargs.values()))
        drawn = self._draw(func, args, kwargs)
        if drawn is not None:
            return drawn
        result = func(*args, **kwargs)
        if isinstance(result, torch.Tensor):
            self.work.add(Work(1, _written(func, args, result), _flops(func, args, kwargs, result)))
        return result

    def _look_for_weights(self, arguments):
        self.used = any(id(argument) in self._weights for argument in arguments)
        self.foreign |= any(
            isinstance(argument, torch.nn.Parameter) and id(argument) not in self._weights
            or isinstance(argument, torch.Tensor) and argument.device.type != "cpu"
            for argument in arguments
        )

    def _draw(self, func, args, kwargs):
        """The result of a random call, drawn on the CPU; None for any other call."""
        if func in _BY_SHAPE and kwargs.get("out") is None:
            dtype = kwargs.get("dtype") or torch.get_default_dtype()
            size = (kwargs["size"],) if "size" in kwargs else args
            drawn = func(*size, generator=self._generator, dtype=_real(dtype), device="cpu")
            return drawn.to(kwargs.get("device") or torch.get_default_device(), dtype)
        if func in _LIKE:
            like = args[0] if args else kwargs["input"]
            dtype = kwargs.get("dtype") or like.dtype
            drawn = _LIKE[func](like.shape, generator=self._generator, dtype=_real(dtype), device="cpu")
            return drawn.to(kwargs.get("device") or like.device, dtype)
        if func in _IN_PLACE:
            kwargs = {key: value for key, value in kwargs.items() if key != "generator"}
            drawn = torch.empty(args[0].shape, dtype=_real(args[0].dtype), device="cpu")
            func(drawn, *args[1:], generator=self._generator, **kwargs)
            return args[0].copy_(drawn)
        return None


def _real(dtype):
    """Draw in float32: half precision draws differ between devices and builds. Complex stays what it is."""
    return dtype if dtype.is_complex else torch.float32


def _written(func, args, result):
    """Elements that a call wrote: none when it made a view."""
    name = getattr(func, "__name__", "")
    in_place = name.endswith("_") and not name.endswith("__")
    if not in_place and args and isinstance(args[0], torch.Tensor) and args[0].layout == result.layout == torch.strided:
        if args[0].untyped_storage().data_ptr() == result.untyped_storage().data_ptr():
            return 0
    return result.numel()


def _flops(func, args, kwargs, result):
    """Multiply-adds counted as two; 0 for anything that is not a matrix product in some form."""
    if func in _CONVOLUTIONS:
        return 2 * result.numel() * _argument(args, kwargs, 1, "weight")[0].numel()
    if func in _TRANSPOSED:
        return 2 * _argument(args, kwargs, 0, "input").numel() * _argument(args, kwargs, 1, "weight")[0].numel()
    if func is F.linear:
        return 2 * result.numel() * _argument(args, kwargs, 1, "weight").shape[-1]
    if func in _PRODUCTS:
        return 2 * result.numel() * _argument(args, kwargs, 0, "input").shape[-1]
    if func is F.scaled_dot_product_attention:
        keys = _argument(args, kwargs, 1, "key").shape[-2]
        return 4 * _argument(args, kwargs, 0, "query").numel() * keys
    return 0


def _argument(args, kwargs, position, name):
    return args[position] if len(args) > position else kwargs[name]
