"""Small calls that reach every kernel of every family by its host name: what the sanitizer runs."""

from __future__ import annotations

from collections.abc import Iterator

from .cases import (
    BLOCKS,
    PIECES,
    Case,
    Tensor,
    fp8_linear_case,
    grouped_case,
    linear_case,
    pad_case,
    scaled_mm_case,
    softmax_case,
)

FLOATS = ("float32", "float16", "bfloat16")
ONE_OF_EACH_SIZE = ("uint8", "float16", "float32", "complex64")
FORMATS = ("float8_e4m3fn", "float8_e5m2", "float8_e4m3fnuz", "float8_e5m2fnuz", "float8_e8m0fnu")


def small() -> Iterator[Case]:
    yield from _pad()
    yield from _softmax()
    yield from _linear()
    yield from _grouped()
    yield from _fp8()


def _pad() -> Iterator[Case]:
    for dtype in ONE_OF_EACH_SIZE:
        for wide in (False, True):
            more = {"wide_offsets": wide, "form": "int64" if wide else None}
            yield pad_case((3, 5, 7, 33), (1, 2, 0, 1, 2, 0), dtype, "small", value=1, **more)
            yield pad_case((2, 3, 1000), (-3, 5, 1, 0), dtype, "small", **more)
            yield pad_case((4, 40, 30), (3, 1, 1, 1), dtype, "small", stride=(1200, 1, 40), **more)
            yield pad_case((2, 3, 4, 5), (1, 1, 1, 1), dtype, "small", stride=(1, 2, 6, 24), offset=3, **more)
    for wide in (False, True):  # units of 16 bytes, in few and in many dimensions
        more = {"wide_offsets": wide, "form": "int64" if wide else None}
        yield pad_case((2, 3, 2, 2, 2, 8), (0, 0, *(1, 1) * 5), "float32", "small", **more)
        yield pad_case((2, 3, 8), (8, 4, 1, 1), "float32", "small", **more)
    for shape, stride in (((9, 40, 70), None), ((3, 5, 3000), None), ((3, 40, 70), (2800, 1, 40)), ((2, 5000), (1, 2))):
        yield pad_case(shape, (3, 1, 1, 0), "float16", "small", stride=stride, form=PIECES)


def _softmax() -> Iterator[Case]:
    same = (("float32", None), ("float16", None), ("bfloat16", None))
    forward = (*same, ("float16", "float32"), ("bfloat16", "float32"))
    backward = (*same, ("float32", "float16"), ("float32", "bfloat16"))
    # Lengths that take one, two and four vectors of a thread; a row that starts inside a vector; a few of everything.
    for op, pairs in (
        ("_softmax", forward), ("_log_softmax", forward),
        ("_softmax_backward_data", backward), ("_log_softmax_backward_data", backward),
    ):  # fmt: skip
        for dtype, out in pairs:
            for shape in ((3, 37), (600, 4100), (520, 9000), (520, 17000), (5, 1000), (2, 33000), (1, 3), (16000, 33),
                          (10000, 100), (10000, 200)):  # fmt: skip
                yield softmax_case(op, shape, dtype, "small", out=out)
            yield softmax_case(op, (300, 34001), dtype, "small", out=out)
            for form in ("looped", "split", "columns", "whole_split"):
                yield softmax_case(op, (3, 5000), dtype, "small", out=out, form=form)
            lanes = 4 if (dtype, out) == ("float32", None) else 8
            for vectors in (1, 2) if "backward" in op else (1, 2, 4):
                yield softmax_case(op, (3, 1024 * lanes * vectors - 96), dtype, "small", out=out, form="whole")
            yield softmax_case(op, (600, 4099), dtype, "small", out=out)
            for shape in ((5, 40, 64), (2, 3, 5)):
                yield softmax_case(op, shape, dtype, "small", dim=1, out=out)
            yield softmax_case(op, (3, 70), dtype, "small", dim=0, out=out)
    for shape, dim in (((50, 300), -1), ((5, 90, 40), 1), ((2, 9000), -1)):
        yield softmax_case("_softmax", shape, "float16", "small", dim=dim, form=PIECES)
    x = Tensor("float16", (24, 40))
    for op in ("_softmax", "_log_softmax"):
        for title, out in (("empty", Tensor("float16", (0,))), ("transposed", Tensor("float16", (24, 40), (1, 24)))):
            yield Case(f"{op} out= {title}", "softmax", f"{op}.out", (x, -1, False, out), "small")


def _linear() -> Iterator[Case]:
    for dtype in FLOATS:
        for rows in (1, 2, 3, 5, 8, 9, 16):
            for n, k in ((37, 256), (130, 1000), (5, 4096)):
                yield linear_case(rows, n, k, dtype, "small", bias=rows % 2 == 1)
            for layout in ("t", "gaps"):
                yield linear_case(rows, 67, 129, dtype, "small", bias=True, layout=layout)
        for rows in (3, 8):
            yield linear_case(rows, 37, 264, dtype, "small", form="long")
        for rows in (5, 16) if dtype != "float32" else ():
            yield linear_case(rows, 70, 264, dtype, "small", bias=True, form="matrices")
        for form in ("straight", "deep") if dtype != "float32" else ():
            for rows in (2, 8):
                yield linear_case(rows, 70, 264, dtype, "small", bias=True, form=form)
    for dtype in ("float16", "bfloat16"):
        yield linear_case(5, 2600, 824, dtype, "small", bias=True)
    for rows in (1, 2):  # a few more outputs than SIMD-groups run at once; enough of them for nobody to share K
        yield linear_case(rows, 40000, 512, "bfloat16", "small")
    yield linear_case(9, 100000, 256, "bfloat16", "small")


def _grouped() -> Iterator[Case]:
    uneven = (0, 3, 3, 10, 12, 30, 31, 40)
    for dtype in FLOATS:
        for transposed in (True, False):
            for n, k in ((64, 128), (72, 200)):
                yield grouped_case((1, 1, 2, 4, 4, 5, 6, 8), n, k, dtype, "small", transposed=transposed)
                yield grouped_case(uneven, n, k, dtype, "small", transposed=transposed)
                ends = tuple(8 * end for end in uneven)
                yield grouped_case(ends, n, k, dtype, "small", transposed=transposed)
        yield grouped_case((1, 1, 2, 4, 4, 5, 8, 8), 21, 4096, dtype, "small")  # SIMD-groups share K
        x, weight = Tensor(dtype, (8, 128)), Tensor(dtype, (8, 128, 64), (64 * 128, 1, 128), offset=1, fill="weights")
        ends = Tensor("int32", (8,), values=(1, 1, 2, 4, 4, 5, 6, 8))
        yield Case(f"grouped skewed weights {dtype}", "grouped_mm", "_grouped_mm", (x, weight, ends), "small")
        yield from _products(dtype)
        for rows, candidates, k in ((3, 8, 4), (9, 256, 8), (2, 3000, 32)):
            x = Tensor(dtype, (rows, candidates))
            yield Case(f"topk {rows}x{candidates} k={k} {dtype}", "grouped_mm", "topk", (x, k), "small")
    for dtype in ("uint8", "int8", "int16", "int32", "int64"):
        for elements, bins, edges in ((64, 100, (0, 100)), (70000, 64, (0, 100)), (64, 10, (0, 0))):
            x = Tensor(dtype, (elements,), fill="integers")
            name = f"histc {elements} in {bins} of {edges} {dtype}"
            yield Case(name, "grouped_mm", "histc", (x, bins, *edges), "small")


def _products(dtype: str) -> Iterator[Case]:
    """The other modes of _grouped_mm, in all four layouts of the operands."""
    groups, m, n, k = 4, 24, 40, 64
    ends = Tensor("int32", (groups,), values=(8, 8, 32, 56))
    for a_along in (True, False):
        for b_along in (True, False):
            layouts = f"{'rows' if a_along else 'columns'} {'rows' if b_along else 'columns'}"
            a3 = Tensor(dtype, (groups, m, k), None if a_along else (m * k, 1, m))
            b3 = Tensor(dtype, (groups, k, n), None if b_along else (n * k, 1, k))
            a2 = Tensor(dtype, (m, k), None if a_along else (1, m))
            b2 = Tensor(dtype, (k, n), None if b_along else (1, k))
            wide_b = Tensor(dtype, (k, 56), None if b_along else (1, k))
            for name, args in (("3d 3d", (a3, b3, None)), ("2d 2d", (a2, b2, ends)), ("3d 2d", (a3, wide_b, ends))):
                yield Case(f"grouped {name} {layouts} {dtype}", "grouped_mm", "_grouped_mm", args, "small")
            rows = Tensor(dtype, (56, k), None if a_along else (1, 56))
            yield Case(f"grouped 2d 3d {layouts} {dtype}", "grouped_mm", "_grouped_mm", (rows, b3, ends), "small",
                       form="tiles")  # fmt: skip


def _fp8() -> Iterator[Case]:
    for dtype in FLOATS:
        for shape in ((33, 64), (7, 13), (2, 1000)):
            title = "x".join(map(str, shape))
            for narrow in FORMATS:
                x, w = Tensor(narrow, shape, fill="bytes"), Tensor(dtype, shape)
                yield Case(f"cast {title} {narrow} to {dtype}", "fp8", "cast", (x, dtype), "small")
                yield Case(f"cast {title} {dtype} to {narrow}", "fp8", "cast", (w, narrow), "small")
            for per in ("tensor", "row"):
                args = (Tensor(dtype, shape), "float8_e4m3fn", per, None)
                yield Case(f"quantise {title} {dtype} per {per}", "fp8", "quantize", args, "small")
        for rows in (1, 2, 3, 8, 16):
            for weight in FORMATS[:2]:
                yield fp8_linear_case(rows, 37, 512, dtype, "small", weight=weight, bias=True)
                yield fp8_linear_case(rows, 37, 1012, dtype, "small", weight=weight, scales="tensor")
            yield fp8_linear_case(rows, 19, 33, dtype, "small", layout="gaps")
        for rows, n in ((1, 12000), (7, 2050), (13, 2050)):  # enough for larger tiles
            for weight in FORMATS[:2]:
                yield fp8_linear_case(rows, n, 144, dtype, "small", weight=weight)
        for rows, form in ((7, "4 tiles"), (13, "4 tiles")):
            for weight in FORMATS[:2]:
                yield fp8_linear_case(rows, 70, 144, dtype, "small", weight=weight, form=form)
        x = Tensor(dtype, (40, 96))
        random = Tensor("uint8", (40, 96), fill="bytes")
        yield Case(f"stochastic {dtype}", "fp8", "stochastic_rounding", (x, random), "small")
        yield Case(f"mxfp8 {dtype}", "fp8", "quantize", (x, "float8_e4m3fn", "block32", None), "small")
        scales = Tensor("float8_e8m0fnu", (128, 4), fill="exponents")
        args = (Tensor("float8_e4m3fn", (40, 96), fill="weight"), scales, dtype)
        yield Case(f"mxfp8 to {dtype}", "fp8", "dequantize", args, "small")
        args = (Tensor("uint8", (40, 48), fill="bytes"), Tensor("float32", (), fill="positive"),
                Tensor("float8_e4m3fn", (128, 8), fill="weight"), dtype)  # fmt: skip
        yield Case(f"nvfp4 to {dtype}", "fp8", "dequantize_nvfp4", args, "small")
    yield Case("recode e4m3fn to e5m2", "fp8", "cast", (Tensor(FORMATS[0], (9, 70), fill="bytes"), FORMATS[1]), "small")
    for rows in (3, 40):
        yield scaled_mm_case(rows, 48, 64, "small")
        yield scaled_mm_case(rows, 48, 64, "small", b="float8_e5m2", out="float32")
    yield from _fp8_blocks()
    yield from _fp8_copies()


def _fp8_blocks() -> Iterator[Case]:
    """Products whose weight is decoded, or copied, in several blocks; and the products of a patch alone."""
    for rows in (3, 40):
        yield fp8_linear_case(rows, 1100, 64, "bfloat16", "small", bias=True, form=BLOCKS)
        yield fp8_linear_case(rows, 1100, 64, "float16", "small", layout="t", bias=True, form=BLOCKS)
    yield fp8_linear_case(3, 40, 64, "float32", "small", weight="float8_e4m3fnuz", scales="tensor")
    x, weight = Tensor("float16", (3, 64)), Tensor(FORMATS[0], (40, 64), fill="weight")
    args = (x, weight, None, Tensor(FORMATS[0], (40,), fill="weight"))
    yield Case("fp8 linear, bias in FP8", "fp8", "fp8_linear", args, "small")
    args = (Tensor("float16", (3, 0)), Tensor(FORMATS[0], (40, 0), fill="weight"), None, Tensor("float16", (40,)))
    yield Case("fp8 linear without K", "fp8", "fp8_linear", args, "small")
    for per in ("tensor", "row"):  # the largest magnitude is found in several stripes
        args = (Tensor("bfloat16", (2, 70000)), FORMATS[0], per, None)
        yield Case(f"quantise 2x70000 bfloat16 per {per}", "fp8", "quantize", args, "small")
    grad, scale = Tensor("float32", (3, 40)), Tensor("float32", (40,), fill="positive")
    yield Case("gradient of an FP8 linear", "fp8", "fp8_grad_input", (grad, weight, scale), "small")
    for out in ("bfloat16", FORMATS[0]):
        case = scaled_mm_case(3, 48, 64, "small", out="bfloat16")
        args = (*case.args[:5], Tensor(out, (3, 48), fill="ones"))
        yield Case(f"scaled_mm out= {out}", "fp8", "scaled_mm.out", args, "small")


def _fp8_copies() -> Iterator[Case]:
    """copy_: direct, by a cast of its own where layouts differ, broadcast, from and to other dtypes, of one dtype."""
    narrow, wide, whole = FORMATS[0], "bfloat16", "int32"
    shape, across = (24, 40), (1, 24)
    for to, source in ((narrow, wide), (wide, narrow), (FORMATS[1], narrow), (narrow, narrow), (narrow, whole),
                       (whole, narrow)):  # fmt: skip
        fill = "weight" if source.startswith("float8") else "normal"
        for stride, sizes in ((None, shape), (across, shape), (None, (40,))):
            source_tensor = Tensor(source, sizes, stride, fill="integers" if source == whole else fill)
            args = (Tensor(to, shape, fill="ones"), source_tensor)
            title = "x".join(map(str, sizes)) + (" transposed" if stride else "")
            yield Case(f"copy_ {source} {title} to {to}", "fp8", "copy_", args, "small")
    args = (Tensor(narrow, (0, 5)), Tensor(wide, (0, 5)))
    yield Case("copy_ of nothing", "fp8", "copy_", args, "small")
