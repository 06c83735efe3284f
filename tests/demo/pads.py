"""Which constant pads a decode makes, and which of them stock MPS gets wrong (pytorch #194922)."""
import math

import torch
from torch.utils._python_dispatch import TorchDispatchMode

THRESHOLD = 65536


def inner_extent(out_shape, pad):
    """max(last dim, product of the output's dims after the outermost axis that `pad` names).

    `pad` is aten's list, last dim first, two numbers a dim.
    """
    if not out_shape:
        return 1
    outermost = len(out_shape) - len(pad) // 2
    return max(out_shape[-1], math.prod(out_shape[outermost + 1:]))


def is_faulty(out_shape, pad):
    """Whether MPSGraph's padTensor writes its fill value over the data here, by the rule of the report.

    A pad of nothing but zeros copies and is right at any size.
    """
    return any(pad) and len(out_shape) >= 5 and inner_extent(out_shape, pad) >= THRESHOLD


class PadCounter(TorchDispatchMode):
    """Counts aten::constant_pad_nd while it is entered; `on_call(n)` is told after each."""

    def __init__(self, on_call=None):
        super().__init__()
        self.calls = self.past_threshold = self.faulty = 0
        self.shapes = set()
        self.on_call = on_call

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        if func is torch.ops.aten.pad.default:
            # Under inference_mode a composite op arrives whole; elsewhere it is taken apart before it gets here.
            with self:
                return func.decompose(*args, **kwargs)
        out = func(*args, **kwargs)
        if func is torch.ops.aten.constant_pad_nd.default:
            self._count(tuple(args[0].shape), tuple(args[1]), tuple(out.shape))
        return out

    def _count(self, shape, pad, out_shape):
        self.calls += 1
        self.past_threshold += inner_extent(out_shape, pad) >= THRESHOLD
        self.faulty += is_faulty(out_shape, pad)
        self.shapes.add((shape, pad))
        if self.on_call:
            self.on_call(self.calls)

    def as_dict(self):
        return {
            "calls": self.calls,
            "distinct_shapes": len(self.shapes),
            "past_threshold": self.past_threshold,
            "faulty_by_rule": self.faulty,
            "threshold": THRESHOLD,
        }
