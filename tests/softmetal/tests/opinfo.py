"""PyTorch's own OpInfo samples, run on the device and compared with the CPU.

    python tests/softmetal/tests/opinfo.py            runs every float32 op and writes opinfo.json, the guard
    python tests/softmetal/tests/opinfo.py add conv   runs the ops whose names contain one of the words, and prints

Both sides run the same CPU kernels from the same seed. Strides, dtypes and integers must be equal; floats to rounding,
because vectorised sums depend on the alignment of memory. (That byte movers are exact is tested elsewhere.)
"""
import contextlib
import json
import sys
import time
import warnings
from collections.abc import Iterator
from pathlib import Path

import torch
from torch.utils._pytree import tree_leaves, tree_map

TABLE = Path(__file__).with_name("opinfo.json")
SEED = 0
WIDE = (torch.float64, torch.complex128)
UNSPECIFIED = {"empty", "empty_like", "empty_permuted", "empty_strided", "new_empty", "new_empty_strided"}
"""Ops whose values mean nothing: only shape, dtype and strides are compared."""
HOST_ARGUMENTS = {"tensor_split"}
"""Ops whose tensor arguments, the input apart, stay on the CPU on every device."""
ROUNDING = {"nn.functional.scaled_dot_product_attention": (1e-4, 1e-4)}
"""(rtol, atol) where the device runs another algorithm than the CPU, as a Mac does: the math version of attention."""


REASONS = {"jiterator": "Jiterator compiles CUDA source: no other device has it",
           "sparse": "the software device has strided tensors only"}
"""Why the ops whose names contain the word cannot agree."""


def operators() -> list:
    """Every OpInfo that has float32 samples, in op_db's order."""
    from torch.testing._internal.common_methods_invocations import op_db

    return [op for op in op_db if torch.float32 in op.supported_dtypes("cpu")]


def key(op) -> str:
    """The name of an OpInfo in the table: its name, and its variant if it has one."""
    return f"{op.name}.{op.variant_test_name}" if op.variant_test_name else op.name


def check(op, limit: int | None = None) -> tuple[str | None, bool]:
    """(reason, wide) of an op: reason is None if every sample agrees with the CPU, else the first difference.

    Samples that hold float64 or complex128 run with the refusal of those types lifted; wide says that all of the
    op's samples are such ones, so that no Mac can run them. limit: at most so many samples, spread evenly.
    """
    wide = True
    try:
        samples = list(_samples(op))
        if limit is not None and len(samples) > limit:
            samples = [samples[index * len(samples) // limit] for index in range(limit)]
        for sample in samples:
            wide &= _check_sample(op, sample)
    except Exception as error:  # whatever an op raises is its result here
        return f"{type(error).__name__}: {' '.join(str(error).split())[:160]}", False
    return None, wide


def _samples(op) -> Iterator:
    torch.manual_seed(SEED)
    return op.sample_inputs("cpu", torch.float32, requires_grad=False)


def _check_sample(op, sample) -> bool:
    """Runs a sample on both devices; True if it needed float64. Raises at a difference."""
    host = (sample.input, sample.args, {**sample.kwargs})
    if str(host[2].get("device", "cpu")).startswith("mps"):  # some samples are made for the accelerator that is there
        host[2]["device"] = "cpu"
    if op.name in HOST_ARGUMENTS:
        device = (_to_mps(sample.input), sample.args, sample.kwargs)
    else:
        device = tree_map(_to_mps, host)
    torch.manual_seed(SEED)
    expected = op(host[0], *host[1], **host[2])
    if any(map(_is_tensor, tree_leaves(expected))) and not any(map(_is_tensor, tree_leaves(host))):
        device = (*device[:2], {**device[2], "device": "mps"})  # a factory
    wide = any(_is_wide(leaf) for leaf in [*tree_leaves(host), *tree_leaves(expected)])
    with wide_types() if wide else contextlib.nullcontext():
        torch.manual_seed(SEED)
        actual = op(device[0], *device[1], **device[2])
    want, got = tree_leaves(expected), tree_leaves(actual)
    if len(want) != len(got):
        raise AssertionError(f"{len(got)} results instead of {len(want)}")
    for pair in zip(want, got, strict=True):
        _compare(op, *pair)
    return wide


@contextlib.contextmanager
def wide_types() -> Iterator[None]:
    """float64 and complex128 on the device, for the length of a with-block."""
    from softmetal.device.build import load

    load().allow_wide_types(True)
    try:
        yield
    finally:
        load().allow_wide_types(False)


def _to_mps(value):
    if isinstance(value, torch.device) or (isinstance(value, str) and value == "cpu"):
        return "mps"
    if not isinstance(value, torch.Tensor) or value.is_nested:
        return value
    with wide_types():
        if value.layout != torch.strided or value.is_conj() or value.is_neg() or not value.untyped_storage().nbytes():
            return value.to("mps")
        # With the whole storage: as_strided may look beyond a view.
        whole = torch.empty(0, dtype=value.dtype).set_(value.untyped_storage()).to("mps")
        return whole.as_strided(value.size(), value.stride(), value.storage_offset())


def _is_tensor(value) -> bool:
    return isinstance(value, torch.Tensor)


def _is_wide(value) -> bool:
    return value in WIDE if isinstance(value, torch.dtype) else isinstance(value, torch.Tensor) and value.dtype in WIDE


def _compare(op, want, got) -> None:
    if not isinstance(want, torch.Tensor):
        if want != got and not (want != want and got != got):
            raise AssertionError(f"{got!r} instead of {want!r}")
        return
    if got.device.type != "mps":
        raise AssertionError(f"the result is on {got.device}")
    for what in ("shape", "dtype", "layout"):
        if getattr(got, what) != getattr(want, what):
            raise AssertionError(f"{what} {getattr(got, what)} instead of {getattr(want, what)}")
    if got.stride() != want.stride():
        raise AssertionError(f"strides {got.stride()} instead of {want.stride()}")
    if key(op) in UNSPECIFIED:
        return
    rtol, atol = ROUNDING.get(key(op), (1e-5, 1e-5)) if want.is_floating_point() or want.is_complex() else (0, 0)
    torch.testing.assert_close(got.cpu(), want, rtol=rtol, atol=atol, equal_nan=True)


def run(ops: list, limit: int | None = None, show: bool = True) -> dict[str, tuple[str | None, bool]]:
    """`check` of each op, by `key`."""
    results = {}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for index, op in enumerate(ops):
            started = time.perf_counter()
            results[key(op)] = check(op, limit)
            if show:
                took, why = time.perf_counter() - started, results[key(op)][0] or ""
                print(f"{index + 1}/{len(ops)} {key(op)} {took:.2f} s {why}", file=sys.stderr, flush=True)
    return results


def _because(name: str, error: str) -> str:
    reason = next((reason for word, reason in REASONS.items() if word in name), None)
    return f"{reason} ({error})" if reason else error


def main(words: list[str]) -> None:
    """The command of the module's docstring."""
    sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
    import softmetal

    softmetal.activate()
    if words:
        run([op for op in operators() if any(word in key(op) for word in words)])
        return
    results = run(operators())
    table = {
        "torch": torch.__version__.split("+")[0],
        "agree": sorted(name for name, (why, _) in results.items() if why is None),
        "agree, but need float64, which no Mac has": sorted(name for name, (_, wide) in results.items() if wide),
        "differ": {name: _because(name, why) for name, (why, _) in sorted(results.items()) if why is not None},
    }
    print(f"{len(table['agree'])} of {len(results)} ops agree with the CPU; the others:")
    for name, why in table["differ"].items():
        print(f"  {name}: {why}")
    TABLE.write_text(json.dumps(table, indent=1) + "\n")


if __name__ == "__main__":
    main(sys.argv[1:])
