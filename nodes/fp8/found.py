"""What ComfyUI made of a state dict: which layers hold quantised weights, and which are used without their scale.

A layer is looked for by its values, not by its name. ComfyUI takes prefixes off names and puts its own before them,
has names of its own for diffusers' and OpenCLIP's, cuts weights into parts, joins them to larger ones and turns them;
but it copies values as they are, at most into another dtype. So where the values that a file stores stand in a weight
that is not quantised, they are used without their scale. And a layer that no module took is used by nobody.
"""
from dataclasses import dataclass

import torch

# What files put before the names of a diffusion model's layers; ComfyUI takes it off.
PREFIXES = ("model.diffusion_model.", "model.model.", "net.", "model.", "")
# How many rows (and columns) of a layer are known, of how many values, and of how many at
# least: what two weights don't have in common by chance.
LINES, LENGTH, LEAST = 8, 32, 4


@dataclass(frozen=True)
class Stored:
    """Some of the values that a layer is stored with: rows of its weight and columns, each from its beginning.

    lines  two tensors [at most LINES, at most LENGTH].
    """

    name: str
    lines: tuple


def stored(name, weight, scale=None):
    """The `Stored` of a layer; None where it is the same with its scale as without.

    weight  [..., rows, columns], the values as they are stored.
    scale   of FP8 formats, times which the values are meant; None where that is not all that is done to them.
    """
    if weight.dim() < 2 or not weight.numel() or (scale is not None and bool((scale.double() == 1).all())):
        return None
    matrix = _matrix(weight)
    lines = tuple(_some(each) for each in (matrix, matrix.t()))
    return Stored(name, lines) if any(map(len, lines)) else None


def lost(modules, layers):
    """The names of those `layers` (`Stored`) that stand in weights which are not quantised, as they are stored.

    Half of a layer's rows or columns are enough: weights are cut and joined on their way.
    """
    hits, known = [(set(), set()) for _ in layers], {}
    for weight in _plain_weights(modules) if layers else ():
        if weight.dtype not in known:
            known[weight.dtype] = _by_values(layers, weight.dtype)
        matrix = _matrix(weight)
        for each in matrix, matrix.t():
            for values in known[weight.dtype].keys() & _rows(each[:, :LENGTH]):
                for layer, way, line in known[weight.dtype][values]:
                    hits[layer][way].add(line)
    return [layer.name for layer, ways in zip(layers, hits, strict=True)
            if any(way and 2 * len(way) >= len(lines) for way, lines in zip(ways, layer.lines, strict=True))]


def without_prefix(name):
    """The names that a layer of a file may have in the model."""
    return {name.removeprefix(prefix) for prefix in PREFIXES}


def formats(modules):
    """{format: number of layers} of every module with a weight: comfy_quant's names, " per row" added; dtypes else."""
    counts = {}
    for root in modules:
        for module in root.modules():
            weight = getattr(module, "weight", None)
            if weight is None or not hasattr(weight, "dtype") or "weight" not in module._parameters:
                continue
            name = str(weight.dtype).removeprefix("torch.")
            if hasattr(weight, "storage_dtype"):
                scale = getattr(weight.params, "scale", None)
                rows = name_of(module, weight).startswith("float8") and scale is not None and scale.numel() > 1
                name = name_of(module, weight) + (" per row" if rows else "")
            counts[name] = counts.get(name, 0) + 1
    return dict(sorted(counts.items(), key=lambda pair: (-pair[1], pair[0])))


def name_of(module, weight):
    """The format of a quantised weight in comfy_quant's words."""
    return getattr(module, "quant_format", None) or str(weight.storage_dtype).removeprefix("torch.")


def _plain_weights(modules):
    """Every parameter and buffer of these modules that may be a weight, and is none with a scale of its own."""
    seen = set()
    for root in modules:
        for tensor in (*root.parameters(), *root.buffers()):
            fits = tensor.dim() > 1 and tensor.numel() and not tensor.is_meta and not tensor.is_complex()
            if fits and not hasattr(tensor, "storage_dtype") and id(tensor) not in seen:
                seen.add(id(tensor))
                yield tensor.detach()


def _matrix(weight):
    """[rows, columns]. Of a convolution a row is all that makes one channel; experts lie one below the other."""
    return weight.flatten(0, -2) if weight.dim() == 3 and weight.shape[-1] >= LENGTH else weight.flatten(1)


def _some(matrix):
    """Up to LINES rows, of those with LEAST values that are not zero, which is zero with any scale."""
    start = matrix[:, :LENGTH]
    start = start.view(torch.uint8) if start.dtype.itemsize == 1 else start
    for count in min(len(matrix), 4 * LINES), len(matrix):
        rows = start[torch.linspace(0, len(matrix) - 1, count).long()].view(matrix.dtype)
        rows = rows[(rows.float() != 0).sum(1) >= LEAST]
        if len(rows):
            return rows[:: -(-len(rows) // LINES)].clone()
    return rows


def _by_values(layers, dtype):
    """{bytes of a line in this dtype: [(number of the layer, 0 for a row or 1 for a column, number of the line)]}"""
    found = {}
    for layer, each in enumerate(layers):
        for way, lines in enumerate(each.lines):
            if not (dtype.is_floating_point or dtype == lines.dtype):
                continue  # numbers of another kind: positions, masks
            cast = lines.to(dtype)
            tell = (cast.float() != 0).sum(1) >= LEAST
            for line, values in enumerate(_rows(cast)):
                if tell[line]:
                    found.setdefault(values, []).append((layer, way, line))
    return found


def _rows(matrix):
    """The bytes of every row."""
    if not matrix.numel():
        return []
    if matrix.dtype.itemsize == 1:  # no operations on FP8 are needed so, which some devices lack
        raw = matrix.view(torch.uint8).contiguous()
    else:
        raw = matrix.reshape(-1).view(torch.uint8).view(len(matrix), -1)
    return raw.cpu().numpy().view(f"V{raw.shape[1]}").ravel().tolist()
