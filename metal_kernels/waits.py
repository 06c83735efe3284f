"""Stock kernels that wait for the GPU: waited for beforehand, so that the other Python threads go on meanwhile.

`call_boxed`, by which an override calls stock, holds Python's lock. While a stock kernel waits inside, no other thread
of ComfyUI runs, its server among them. So whatever stock is about to read on the host is copied there first, one
element of it, through the dispatcher, which gives the lock up. The GPU works in order: what was queued is done then,
and stock waits for no more than what it queues itself.

Which kernels wait, and for what, is read off PyTorch's sources (aten/src/ATen/native/mps/operations, 2.9 to 2.15).
copy_ waits too, but stock's can be called without the lock (patcher.py). Where a stock kernel calls another op that is
patched (`.item()` in fill_.Tensor), that one's override gives the lock up by itself.
"""

from __future__ import annotations

from collections.abc import Callable

import torch

_MASKS = (torch.bool, torch.uint8)

# The dtypes that stock's item() knows in every torch since 2.9. Of others stock is asked.
_ITEMS = frozenset(
    (torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64)
    + (torch.float16, torch.bfloat16, torch.float32, torch.complex64)
)


def _of_indices(self: torch.Tensor, indices: list[torch.Tensor | None], *rest: object) -> torch.Tensor | None:
    """A mask is counted; indices on the CPU are copied to the device, which waits for what is queued there."""
    for index in indices:
        if index is not None and index.is_cpu:
            return self
        if index is not None and index.dtype in _MASKS:
            return index
    return None


# op -> what stock reads on the host of these arguments: a tensor on mps, or None.
WAITS: dict[str, Callable[..., torch.Tensor | None]] = {
    "_local_scalar_dense": lambda self: self,
    "fill_.Tensor": lambda self, value: value,
    "equal": lambda self, other: self,
    "masked_select": lambda self, mask: mask if mask.is_mps else self,
    "index.Tensor": _of_indices,
    "_index_put_impl_": _of_indices,
    # bin edges are made on the device and read one by one
    "histc": lambda self, *args, **kwargs: self,
    # up to 2.14, and only the ends of the groups
    "_grouped_mm": lambda self, mat2, offs=None, *args, **kwargs: offs,
}


def without_lock(op: str, stock: Callable) -> Callable:
    """`stock`, a function of (keyset, *args, **kwargs), waited for first where it waits: same results, same errors."""
    if op not in WAITS:
        return stock
    reads, is_item = WAITS[op], op == "_local_scalar_dense"

    def waiting(keyset, *args, **kwargs):
        try:
            tensor = reads(*args, **kwargs)
            if tensor is not None and tensor.is_mps and tensor.numel():
                element = _first_element(tensor)
                if is_item and tensor.dtype in _ITEMS:
                    return element.item()
        except Exception:  # whatever is wrong with these arguments, stock says it
            pass
        return stock(keyset, *args, **kwargs)

    return waiting


def _first_element(tensor: torch.Tensor) -> torch.Tensor:
    """On the CPU, of one element; waited for without Python's lock.

    Beneath autograd, and by an op that is not patched: nothing of this is recorded, counted or taken over.
    """
    with torch._C.DisableTorchFunction():  # nor seen by the caller's modes
        if tensor.numel() != 1:
            tensor = _as_strided(_MPS, tensor, (1,), (1,), tensor.storage_offset())
        return _copy_from(_MPS, tensor, torch.empty(tensor.shape, dtype=tensor.dtype, device="cpu"), False)


_MPS = torch._C.DispatchKeySet(torch._C.DispatchKey.MPS)
_as_strided = torch.ops.aten.as_strided.default._handle.redispatch_boxed
_copy_from = torch.ops.aten._copy_from.default._handle.redispatch_boxed
