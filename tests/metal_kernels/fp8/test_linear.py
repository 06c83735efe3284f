"""linear on FP8 weights against float64: forms of the kernel, shapes, layouts, scales, schedules."""

import pytest
import torch
import torch.nn.functional as F

E4M3, E5M2 = torch.float8_e4m3fn, torch.float8_e5m2
WIDE = (torch.float32, torch.float16, torch.bfloat16)


def randn(*sizes, seed=0):
    return torch.randn(sizes, generator=torch.Generator().manual_seed(seed))


def assert_close(actual, x, weight, scale=None, bias=None, ulps=1.0):
    """Within `ulps` of the output's dtype of the float64 result, plus float32's error of a sum of K products.

    That sum is off by at most about sqrt(K) roundings of its largest partial sum, which the products' magnitudes bound.
    """
    w = weight.float().double() * (1.0 if scale is None else scale.double().reshape(-1, 1))
    exact = x.double() @ w.t() + (0 if bias is None else bias.double())
    magnitude = x.double().abs() @ w.abs().t()
    error = (actual.cpu().double() - exact).abs()
    bound = exact.abs() * ulps * torch.finfo(x.dtype).eps + magnitude * 2.0**-24 * (4 + weight.shape[1] ** 0.5)
    assert actual.dtype == x.dtype and actual.shape == exact.shape
    assert (error <= bound + torch.finfo(x.dtype).smallest_normal).all(), float((error - bound).max())


def test_all_bytes_meet_a_one(fp8):
    """Every value of a format comes through the GEMV exactly; its NaNs too, which makes the whole row's sum NaN."""
    for dtype in fp8.dtypes:
        weight = fp8.every_byte(dtype).reshape(256, 1)
        for k in (16, 4, 3):
            padded = torch.zeros(256, k, dtype=torch.uint8)
            padded[:, k // 2] = weight.view(torch.uint8)[:, 0]
            if dtype is getattr(torch, "float8_e8m0fnu", None):
                continue  # has no zero to pad with
            x = torch.zeros(1, k)
            x[:, k // 2] = 1.0
            actual = F.linear(x.to("mps"), fp8.twin(padded.view(dtype)))[0].cpu()
            expected = weight.float()[:, 0]
            assert torch.equal(actual.isnan(), expected.isnan())
            same = actual.nan_to_num(7.0, 8.0, 9.0) == expected.nan_to_num(7.0, 8.0, 9.0)
            assert same.all(), (dtype, k)


def test_nan_in_a_row_stays_in_it(fp8):
    weight = randn(5, 1040).to(E4M3)
    weight.view(torch.uint8)[2, 777] = 0xFF
    out = F.linear(torch.ones(3, 1040, device="mps"), fp8.twin(weight)).cpu()
    assert out[:, 2].isnan().all() and not out[:, [0, 1, 3, 4]].isnan().any()
    x = torch.ones(2, 1040)
    x[1, 5] = float("inf")
    out = F.linear(x.to("mps"), fp8.twin(randn(5, 1040).abs().add(1).to(E4M3))).cpu()
    assert out[1].isinf().all() and out[0].isfinite().all()


@pytest.mark.parametrize("form", range(4))
@pytest.mark.parametrize("dtype", (E4M3, E5M2), ids=str)
def test_matrices(fp8, monkeypatch, form, dtype):
    """Each instantiation, K shared in every way; K that ends within a strip; a NaN stays in its row."""
    host = fp8.modules.linear
    form = host.MATRICES[form]
    rows = 8 * form.tiles + 3
    for wide in (torch.float16, torch.bfloat16):
        for batch, cols, split in ((form.rows, 272, 4), (form.rows - 5, 16, 1), (form.rows - 3, 208, 3)):
            monkeypatch.setattr(host, "matrix_form", lambda *_, split=split: (form, split))
            x, scale = randn(batch, cols, seed=cols).to(wide), torch.rand(rows) + 0.5
            weight, bias = randn(rows, cols, seed=split).to(dtype), randn(rows, seed=2).to(wide)
            actual = fp8.family.linear(fp8.twin(x), fp8.twin(weight), scale.to("mps"), bias.to("mps")).cpu()
            assert_close(actual, x, weight, scale, bias)
            weight.view(torch.uint8)[9, cols - 1] = 0xFF
            again = fp8.family.linear(fp8.twin(x), fp8.twin(weight), scale.to("mps"), bias.to("mps")).cpu()
            assert again[:, 9].isnan().all()
            actual[:, 9] = again[:, 9] = 0
            assert torch.equal(actual, again)


@pytest.mark.parametrize("batch, rows", ((3, 64), (3, 4096), (8, 11008), (16, 4096), (16, 11008), (5, 100000)))
def test_a_form_of_matrices_has_work_for_each_simdgroup(fp8, batch, rows):
    """And its threadgroup's sums have room."""
    for cols in (16, 64, 80, 4096):
        form, split = fp8.modules.linear.matrix_form(batch, rows, cols)
        assert form.rows >= batch and form.rows * split <= 128
        assert split <= form.resident and (split - 1) * 64 < cols


@pytest.mark.parametrize("batch", (1, 3, 13))
def test_scales_whose_product_is_no_float(fp8, batch):
    """Neither their product nor the first one's with the sum need be a float32 where the result is."""
    host = fp8.modules.linear
    weight = torch.full((6, 32), 16.0).to(E4M3)
    weight.view(torch.uint8)[1] = 0
    cases = ((4.0, 1e38, 1e-38), (2.0**-9, 1e-30, 1e30), (1.0, 1e30, 1e30), (1.0, 1e-30, 1e-30))
    for wide in (torch.float32, torch.bfloat16):
        for value, first, second in cases:
            for scales in ((first, second), (second, first)):
                x, out = torch.full((batch, 32), value, dtype=wide), torch.empty(batch, 6, device="mps")
                on_device = (torch.tensor([scale]).to("mps") for scale in scales)
                host.gemv(out, x.to("mps"), fp8.twin(weight), *on_device, None)
                exact = torch.full((batch, 6), value * 512.0 * first * second, dtype=torch.float64)
                exact[:, 1] = 0.0
                torch.testing.assert_close(out.cpu(), exact.float(), rtol=1e-6, atol=0.0)


LAYOUTS = {
    "offset": lambda w: w[1:],
    "column slice": lambda w: w[:, 16:-16],
    "odd column slice": lambda w: w[:, 3:-1],
    "transposed": lambda w: w.t().contiguous().t(),
    "every other row": lambda w: w[::2],
    "every other column": lambda w: w[:, ::2],
    "one row over all": lambda w: w[:1].expand(7, -1),
}


def test_x_in_any_layout(fp8):
    weight = randn(6, 64).to(E4M3)
    for x in (
        randn(64, 5).t(),
        randn(5, 65)[:, 1:],
        randn(1, 64).expand(3, 64),
        randn(10, 64)[::2],
        randn(321)[1:].view(5, 64),
    ):
        for wide in (torch.float32, torch.bfloat16):
            assert_close(F.linear(fp8.twin(x).to(wide), fp8.twin(weight)), x.to(wide), weight)


def test_nothing_to_sum_and_nothing_to_write(fp8):
    bias = randn(6)
    empty = torch.zeros(6, 0, dtype=torch.uint8).view(E4M3)
    assert torch.equal(
        F.linear(torch.zeros(3, 0, device="mps"), fp8.twin(empty), bias.to("mps")).cpu(), bias.expand(3, 6)
    )
    none = torch.zeros(0, 64, dtype=torch.uint8).view(E4M3)
    assert F.linear(torch.zeros(3, 64, device="mps"), fp8.twin(none)).shape == (3, 0)


@pytest.mark.parametrize("rows", (17, 70))
def test_many_rows_in_blocks(fp8, monkeypatch, rows):
    """The weight is decoded in pieces of bounded size: here of 10 rows. One more ulp: each weight is rounded too."""
    monkeypatch.setattr(fp8.modules.linear, "MAX_SCRATCH", 10 * 96 * 4)
    for wide in WIDE:
        x, weight, bias = randn(rows, 96).to(wide), randn(33, 96, seed=1).to(E4M3), randn(33, seed=2).to(wide)
        assert_close(F.linear(fp8.twin(x), fp8.twin(weight), bias.to("mps")), x, weight, bias=bias, ulps=1.5)
        for scale in (torch.tensor([0.37]), torch.rand(33) + 0.5):
            actual = fp8.family.linear(fp8.twin(x), fp8.twin(weight), scale.to("mps"), bias.to("mps")).cpu()
            decoded = (weight.float() * scale.view(-1, 1)).to(wide)
            expected = F.linear(x.double(), decoded.double(), bias.double())
            magnitude = float((x.double().abs() @ decoded.double().abs().t()).max())
            assert (actual.double() - expected).abs().max() <= torch.finfo(wide).eps * (
                float(expected.abs().max()) + 1
            ) + (magnitude * 2.0**-22)


def test_scratch_is_bounded(fp8, monkeypatch):
    """A weight of which a decoded copy would be 16 MiB takes 1 MiB of scratch and one block's product."""
    from softmetal import counters

    monkeypatch.setattr(fp8.modules.linear, "MAX_SCRATCH", 2**20)
    weight = torch.zeros(2048, 2048, dtype=torch.uint8, device="mps").view(E4M3)
    x = torch.zeros(20, 2048, dtype=torch.float32, device="mps")
    F.linear(x, weight)
    torch.mps.empty_cache()
    counters.reset()
    before = counters.memory()["current"]
    F.linear(x, weight)
    assert counters.memory_peaks()["current"] - before < 2 * 2**20


@pytest.mark.parametrize("rows, blocks", [(128, 1), (192, 1), (193, 2)])
def test_a_weight_of_little_more_than_the_scratch_is_one_block(fp8, monkeypatch, rows, blocks):
    """Scratch for 128 rows in bf16, half as much again for all of a weight; no copy of the result then."""
    from softmetal import counters

    monkeypatch.setattr(fp8.modules.linear, "MAX_SCRATCH", 128 * 4096 * 2)
    weight = torch.zeros(rows, 4096, dtype=torch.uint8, device="mps").view(E4M3)
    x = torch.zeros(512, 4096, dtype=torch.bfloat16, device="mps")
    F.linear(x, weight)
    torch.mps.empty_cache()
    counters.reset()
    before = counters.memory()["current"]
    result = F.linear(x, weight)
    peak = counters.memory_peaks()["current"] - before
    assert len(list(fp8.modules.linear.decoded_blocks(weight, x.dtype, whole=fp8.modules.linear.WHOLE))) == blocks
    assert peak <= result.nbytes + (rows * 4096 * 2 if blocks == 1 else 128 * 4096 * 2 + result.nbytes) + 2**15


def test_no_format_but_ours_is_taken(fp8):
    before = fp8.taken
    x, weight = torch.zeros(2, 16, device="mps"), torch.zeros(4, 16, dtype=torch.uint8, device="mps").view(E4M3)
    for arguments in (
        (torch.zeros(2, 15, device="mps"), weight),
        (x, weight, torch.zeros(3, device="mps")),
        (x, weight, torch.zeros(4, device="mps").half()),
        (x.int(), weight),
        (x, weight[0]),
    ):
        with pytest.raises(RuntimeError):
            F.linear(*arguments)
        with pytest.raises(ValueError, match="fp8.linear takes"):
            fp8.family.linear(arguments[0], arguments[1], None, arguments[2] if len(arguments) > 2 else None)
    assert fp8.taken == before
    with pytest.raises(ValueError, match="3 scales for a weight of 4 rows"):
        fp8.family.linear(x, weight, torch.ones(3, device="mps"))
    F.linear(x, torch.zeros(4, 16, device="mps"))
    assert fp8.taken == before


def test_a_bias_in_fp8(fp8):
    """Plain FP8 files store biases so too."""
    weight, bias = randn(6, 64).to(E4M3), randn(6, seed=1).to(E4M3)
    for rows in (2, 40):
        x = randn(rows, 64)
        assert_close(F.linear(fp8.twin(x), fp8.twin(weight), fp8.twin(bias)), x, weight, bias=bias.float(), ulps=2)


@pytest.mark.parametrize("rows", (2, 40))
def test_gradients(fp8, monkeypatch, rows):
    """Of x and of the bias, in blocks of 10 rows of the weight."""
    monkeypatch.setattr(fp8.modules.linear, "MAX_SCRATCH", 10 * 64 * 4)
    weight, bias = randn(33, 64).to(E4M3), randn(33, seed=1)
    x, grad = randn(2, rows, 64), randn(2, rows, 33, seed=2)
    leaves = [t.clone().requires_grad_() for t in (x, bias)]
    F.linear(leaves[0], weight.float(), leaves[1]).backward(grad)
    ours = [t.to("mps").requires_grad_() for t in (x, bias)]
    F.linear(ours[0], fp8.twin(weight), ours[1]).backward(grad.to("mps"))
    for actual, expected in zip(ours, leaves, strict=True):
        torch.testing.assert_close(actual.grad.cpu(), expected.grad, rtol=1e-5, atol=1e-4)
    alone = x.to("mps").requires_grad_()
    F.linear(alone, fp8.twin(weight)).backward(grad.to("mps"))
    torch.testing.assert_close(alone.grad.cpu(), leaves[0].grad, rtol=1e-5, atol=1e-4)


@pytest.mark.parametrize("sizes", [(0, 33, 64), (3, 0, 64), (3, 33, 0)], ids=str)
def test_gradients_of_nothing(fp8, sizes):
    rows, outputs, length = sizes
    weight = randn(outputs, length).to(E4M3)
    x, grad = randn(2, rows, length), randn(2, rows, outputs, seed=2)
    leaf, ours = x.clone().requires_grad_(), x.to("mps").requires_grad_()
    F.linear(leaf, weight.float()).backward(grad)
    F.linear(ours, fp8.twin(weight)).backward(grad.to("mps"))
    assert ours.grad.shape == x.shape and torch.equal(ours.grad.cpu(), leaf.grad)


def test_linear_does_not_wait(fp8, host_copies):
    weight, scale = torch.zeros(40, 64, dtype=torch.uint8, device="mps").view(E4M3), torch.ones(1, device="mps")
    for rows in (1, 16, 40):
        fp8.family.linear(torch.zeros(rows, 64, device="mps"), weight, scale)
    assert host_copies() == 0


def test_more_batches_than_stock_biases(fp8):
    """Report 3 with an FP8 weight: torch's product under it sees a matrix, whose bias it does not lose past 65536."""
    x, weight, bias = randn(65537, 2, 32), randn(32, 32, seed=1).to(E4M3), randn(32, seed=2)
    actual = F.linear(x.to("mps"), fp8.twin(weight), bias.to("mps")).cpu()
    torch.testing.assert_close(actual[-9:], F.linear(x[-9:], weight.float(), bias), rtol=1e-5, atol=1e-4)


@pytest.mark.parametrize("dtype", (torch.float8_e4m3fn, torch.float8_e5m2), ids=str)
@pytest.mark.parametrize("sizes", [(4, 48), (40, 48), (48,), (2, 3, 48), (0, 48), (3, 0)], ids=str)
def test_of_two_fp8_tensors(fp8, dtype, sizes):
    """The result is FP8 as well, as on the CPU: the sum in float, rounded once. Of whole numbers, bit for bit."""
    generator = torch.Generator().manual_seed(0)
    x, weight, bias = (torch.randint(-3, 4, shape, generator=generator).float().to(dtype)
                       for shape in (sizes, (24, sizes[-1]), (24,)))  # fmt: skip
    for b in (None, bias):
        expected = F.linear(x, weight, b)
        before = fp8.taken
        actual = F.linear(fp8.twin(x), fp8.twin(weight), None if b is None else fp8.twin(b))
        assert fp8.taken > before
        fp8.assert_same(actual, expected)


@pytest.mark.parametrize("dtype, step", [(torch.float8_e4m3fn, 2.0**-4), (torch.float8_e5m2, 2.0**-3)], ids=str)
def test_of_two_fp8_tensors_any_numbers(fp8, dtype, step):
    x, weight = fp8.random((5, 200), dtype), fp8.random((24, 200), dtype, seed=1)
    actual = F.linear(fp8.twin(x), fp8.twin(weight))
    exact = x.double() @ weight.double().t()
    error = (actual.cpu().double() - exact).abs()
    assert (error <= step * exact.abs().clamp(min=1e-2) * 1.001).all()
    large = torch.full((1, 200), torch.finfo(dtype).max).to(dtype)
    fp8.assert_same(F.linear(fp8.twin(large), fp8.twin(large)), F.linear(large, large))


def test_two_fp8_tensors_of_other_kinds_are_refused(fp8):
    """As on the CPU."""
    x, weight = fp8.random((3, 16), torch.float8_e4m3fn), fp8.random((4, 16), torch.float8_e4m3fn)
    wrong = ((x.to(torch.float8_e5m2), weight, None), (x, weight, torch.zeros(4)),
             (x, weight, torch.zeros(4).to(torch.float8_e5m2)))  # fmt: skip
    for x, weight, bias in wrong:
        for move in (lambda t: t), fp8.twin:
            with pytest.raises((RuntimeError, TypeError)):
                F.linear(move(x), move(weight), None if bias is None else move(bias))


@pytest.mark.parametrize("rows", [1, 5, 16, 40])
def test_scales_of_any_strides(fp8, rows):
    """One value for all rows by expand(), every other one, and rows of a transposed matrix."""
    x, weight, bias = randn(rows, 48), randn(24, 48, seed=1).to(E4M3), torch.tensor([0.25])
    spread = torch.rand(24, 2) + 0.5
    for scale in (torch.tensor(0.5).expand(24, 1), torch.tensor([0.5]).expand(24), spread[:, :1], spread.t()[1]):
        expected = x.double() @ (weight.double() * scale.reshape(-1, 1).double()).t() + 0.25
        on_device = scale.contiguous().to("mps")  # of these strides there too
        if scale.numel() > 1 and 0 in scale.stride():
            on_device = torch.tensor(0.5, device="mps").expand(scale.shape)
        elif not scale.is_contiguous():
            on_device = spread.to("mps")[:, :1] if scale.dim() == 2 else spread.to("mps").t()[1]
        assert on_device.stride() == scale.stride()
        actual = fp8.family.linear(fp8.twin(x), fp8.twin(weight), on_device, bias.to("mps").expand(24))
        torch.testing.assert_close(actual.cpu().double(), expected, rtol=1e-5, atol=1e-4)
        grad = fp8.modules.linear.linear_grad_input(torch.ones(rows, 24, device="mps"), fp8.twin(weight), on_device)
        torch.testing.assert_close(
            grad.cpu().double(), torch.ones(rows, 24).double() @ (weight.double() * scale.reshape(-1, 1).double()),
            rtol=1e-5, atol=1e-4)  # fmt: skip
        values = fp8.family.dequantize(fp8.twin(weight), on_device, torch.float32).cpu()
        assert torch.equal(values, weight.float() * scale.reshape(-1, 1))
        again, _ = fp8.family.quantize(values.to("mps"), E4M3, "row", on_device)
        assert torch.equal(again.cpu().view(torch.uint8), weight.view(torch.uint8))
