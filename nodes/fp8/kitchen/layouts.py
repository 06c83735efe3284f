"""F.linear on a weight that comfy-kitchen holds in FP8: the fused kernel, without a copy of the weight in x's dtype.

comfy-kitchen's FP8 layouts find their handler of aten::linear in a table, by their class or one of its bases. Ours
stands wherever one of theirs stood, passes on what it does not take, and gives the place back. A layout that
dequantises in a way of its own means something else by its scale, and is left alone.
"""
import torch

from . import private

NAME = "comfy_kitchen::linear on an FP8 layout"
FORMATS = (torch.float8_e4m3fn, torch.float8_e5m2)


def register(kernels, tensor):
    """Stand before every FP8 layout's handler of aten::linear. Returns a function that gives the places back.

    Another pack may have stood before ours since: then ours stays in its chain, and passes everything on.

    tensor   the module comfy_kitchen.tensor.
    """
    op, table = torch.ops.aten.linear.default, private.handlers(torch.ops.aten.linear.default)
    entry, placed, awake = kernels.entry("fp8", NAME), {}, [True]
    for layout in _with_subclasses(tensor.TensorCoreFP8Layout):
        if layout in table and layout.dequantize.__func__ is tensor.TensorCoreFP8Layout.dequantize.__func__:
            placed[layout] = table[layout], _handler(kernels.fp8, entry, tensor.QuantizedTensor, table[layout], awake)
            tensor.register_layout_op(op, layout)(placed[layout][1])

    def unregister():
        awake.clear()
        for layout, (theirs, ours) in placed.items():
            if table.get(layout) is ours:
                table[layout] = theirs

    return unregister


def _with_subclasses(layout):
    yield layout
    for subclass in layout.__subclasses__():
        yield from _with_subclasses(subclass)


def _handler(fp8, entry, quantized, theirs, awake):
    def linear(tensor, args, kwargs):
        x, weight, bias = (*args, None)[:3]
        if kwargs or not awake or not isinstance(weight, quantized):
            return theirs(tensor, args, kwargs)
        check_scale(weight)
        values, scale = private.data(weight), weight.params.scale
        if not _fits(x, weight, bias, quantized):
            if values.device.type == "mps" and values.dtype in FORMATS:
                entry.passed(values.dtype, tuple(x.shape))
            return theirs(tensor, args, kwargs)
        return entry.call(
            values.dtype, x.shape,
            lambda: _product(fp8, x, values, scale, bias), lambda: theirs(tensor, args, kwargs),
        )

    return linear


def check_scale(weight):
    """Raises ValueError for an FP8 weight on mps whose scale is missing, or is neither one value nor one a row: a
    damaged file. Of most of them comfy-kitchen would say something about types and dimensions; but scales that happen
    to fit (one a column, of a square weight one in a row) it would multiply with as they lie."""
    values, scale = private.data(weight), weight.params.scale
    if values.device.type != "mps" or values.dtype not in FORMATS:
        return
    size = "x".join(map(str, values.shape))
    if not isinstance(scale, torch.Tensor):
        raise ValueError(f"an FP8 weight of {size} came without its scale: the file says that the layer is quantised, "
                         "and has no weight_scale for it. Nothing was computed; get the file again.")
    if getattr(weight.params, "transposed", False):
        return  # what is one a row of it, theirs knows
    if not _one_or_rows(scale, values) and not _turned(values, scale):
        raise ValueError(f"an FP8 weight of {size} came with a scale of shape {list(scale.shape)}: to be one value, or "
                         f"[{values.shape[0]}, 1], one a row. Nothing was computed; get the file again.")


def _one_or_rows(scale, values):
    return scale.numel() == 1 and scale.dim() <= 2 or tuple(scale.shape) == (*values.shape[:1], 1)


def _product(fp8, x, values, scale, bias):
    if not _turned(values, scale):
        return fp8.linear(x, values, scale, bias)
    product = fp8.linear_grad_input(x, values.t(), scale)
    return product if bias is None else product + bias


def _turned(values, scale):
    """Whether this is a weight after `.t()`, whose scales are still those of the rows that it had: nothing but the
    strides tells."""
    sizes, strides = values.shape, values.stride()
    of_columns = len(sizes) == 2 and min(sizes) > 1 and tuple(scale.shape) == (sizes[1], 1)
    return of_columns and strides[0] == 1 and strides[1] >= sizes[0]


def _fits(x, weight, bias, quantized):
    """Whether this is a plain x on mps, a weight [N, K] of FP8 with one scale or one a row, and a plain bias or none,
    all of one logical dtype. What else there is, theirs computes or refuses."""
    if isinstance(x, quantized) or isinstance(bias, quantized) or getattr(weight.params, "transposed", False):
        return False
    values = private.data(weight)
    return (
        x.device.type == values.device.type == "mps"
        and values.dtype in FORMATS
        and values.dim() == 2
        and tuple(values.shape) == tuple(weight.shape)
        and x.dim() >= 1
        and x.shape[-1] == values.shape[1]
        and x.dtype == weight.dtype
        and x.dtype in (torch.float32, torch.float16, torch.bfloat16)
        and (bias is None or bias.dtype == x.dtype and bias.shape == values.shape[:1] and bias.device == x.device)
    )
