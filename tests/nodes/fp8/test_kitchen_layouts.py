"""F.linear on comfy-kitchen's FP8 tensors: the fused kernel, no copy of the weight, and theirs for all else."""
import pytest
import torch
import torch.nn.functional as F
from kitchen_toys import randn, same, to_mps

E4M3, E5M2 = torch.float8_e4m3fn, torch.float8_e5m2
LINEAR = torch.ops.aten.linear.default
TOLERANCE = {torch.float32: 1e-5, torch.float16: 2e-3, torch.bfloat16: 1.6e-2}


@pytest.fixture
def make(kitchen):
    """make(values, scale, dtype, layout): a QuantizedTensor where `values` are."""

    def of(values, scale, dtype=torch.bfloat16, layout="TensorCoreFP8Layout"):
        params = kitchen.tensor.get_layout_class(layout).Params(
            scale=scale.to(values.device), orig_dtype=dtype, orig_shape=tuple(values.shape))
        return kitchen.tensor.QuantizedTensor(values, layout, params)

    return of


def taken(kitchen):
    return kitchen.counts(kitchen.layouts.NAME)


@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
@pytest.mark.parametrize("fp8", [E4M3, E5M2], ids=str)
@pytest.mark.parametrize("shape", [(48,), (1, 48), (2, 3, 48), (40, 48)], ids=str)
def test_it_is_the_product(kitchen, make, dtype, fp8, shape):
    x, values, bias = randn(*shape, seed=1).to(dtype), randn(24, 48).to(fp8), randn(24, seed=2).to(dtype)
    for scale in (torch.tensor(0.25), torch.linspace(0.1, 0.5, 24)[:, None]):
        weight = make(to_mps(values), scale, dtype)
        for b in (None, bias):
            kitchen.kernels.reset_counters()
            actual = F.linear(x.to("mps"), weight, b if b is None else b.to("mps"))
            assert taken(kitchen) == (1, 0)
            expected = x.double() @ (values.double() * scale.double()).t() + (0 if b is None else b.double())
            assert actual.dtype == dtype and actual.shape == (*shape[:-1], 24)
            error = TOLERANCE[dtype]
            torch.testing.assert_close(actual.cpu().double(), expected, rtol=error, atol=7 * error)


@pytest.mark.parametrize("size", [(48, 48), (24, 48)], ids=str)
def test_a_weight_after_t_with_scales_of_the_rows_that_it_had(kitchen, make, size):
    """Theirs is right on the CPU; a square one fits ours by its sizes."""
    values, scale = randn(*size).to(E4M3), torch.linspace(0.1, 0.5, size[0])[:, None]
    x = randn(5, size[0], seed=1)
    expected = x.double() @ (values.double() * scale.double())
    for place in ("cpu", "mps"):
        weight = make(values if place == "cpu" else to_mps(values), scale, torch.float32)
        actual = F.linear(x.to(place), weight.t(), torch.ones(size[1], device=place)).cpu().double()
        torch.testing.assert_close(actual, expected + 1, rtol=1e-5, atol=1e-4)


def test_a_weight_that_lies_by_columns_with_scales_of_its_rows(make):
    values, scale, x = randn(48, 24).to(E4M3).t(), torch.linspace(0.1, 0.5, 24)[:, None], randn(5, 48, seed=1)
    weight = make(to_mps(values.t()).t(), scale, torch.float32)
    expected = x.double() @ (values.double() * scale.double()).t()
    torch.testing.assert_close(F.linear(x.to("mps"), weight).cpu().double(), expected, rtol=1e-5, atol=1e-4)


@pytest.mark.parametrize("rows", [1, 5, 20])
def test_scales_of_any_strides(kitchen, make, rows):
    x, values = randn(rows, 48, seed=1), randn(40, 48).to(E4M3)
    spread = (torch.rand(40, 3) + 0.5).to("mps")
    for scale in (spread[:, 1:2], torch.tensor(0.5, device="mps").expand(40, 1)):
        weight = make(to_mps(values), scale, torch.float32)
        decoded = values.double() * scale.cpu().double()
        torch.testing.assert_close(
            F.linear(x.to("mps"), weight).cpu().double(), x.double() @ decoded.t(), rtol=1e-5, atol=1e-4)
        torch.testing.assert_close(weight.dequantize().cpu().double(), decoded, rtol=1e-6, atol=0)


@pytest.mark.parametrize("rows", [1, 16, 17, 512])
def test_no_copy_of_the_weight_is_made(kitchen, make, rows):
    """Up to 16 rows nothing but the result; more: blocks of at most 64 MiB, here half of the decoded weight."""
    softmetal = pytest.importorskip("softmetal", reason="counts on the software device")
    count = 2048 if rows <= 16 else 16384
    weight = make(torch.zeros(count, 4096, dtype=torch.uint8, device="mps").view(E4M3), torch.tensor(1.0))
    x = torch.ones(rows, 4096, dtype=torch.bfloat16, device="mps")
    F.linear(x[:1], weight)  # the self-check has been
    softmetal.counters.reset()
    before = softmetal.counters.memory()["current"]
    F.linear(x, weight)
    peak = softmetal.counters.memory_peaks()["current"] - before
    result, block = rows * count * 2, 64 * 2**20
    assert peak <= (result if rows <= 16 else 2 * result + block) + 2**20
    assert taken(kitchen) == (2, 0)


def test_the_dequantised_copy_was_theirs(kitchen, make):
    softmetal = pytest.importorskip("softmetal", reason="counts on the software device")
    weight = make(torch.zeros(2048, 1024, dtype=torch.uint8, device="mps").view(E4M3), torch.tensor(1.0))
    x = torch.ones(1, 1024, dtype=torch.bfloat16, device="mps")
    kitchen.ours.uninstall()
    softmetal.counters.reset()
    before = softmetal.counters.memory()["current"]
    F.linear(x, weight)
    assert softmetal.counters.memory_peaks()["current"] - before >= 2048 * 1024 * 2


def test_a_quantised_input_is_theirs(kitchen, make):
    """Both quantised: their scaled product, which the kernel's aten::_scaled_mm runs."""
    x, values = randn(32, 48, seed=1).to(E4M3), randn(16, 48).to(E4M3)
    cpu = F.linear(make(x, torch.tensor(0.5)), make(values, torch.tensor(0.25)))
    before = kitchen.kernels.status()["kernels"]["fp8"]["ops"]["_scaled_mm"]["taken"]
    actual = F.linear(make(to_mps(x), torch.tensor(0.5)), make(to_mps(values), torch.tensor(0.25)))
    torch.testing.assert_close(actual.cpu(), cpu, rtol=1.6e-2, atol=0.1)
    assert taken(kitchen) == (0, 1)
    after = kitchen.kernels.status()["kernels"]["fp8"]["ops"]
    assert after["_scaled_mm"]["taken"] + after["_scaled_mm_v2"]["taken"] > before


@pytest.mark.parametrize("change", [
    lambda x, w, b: (x.float(), w, b), lambda x, w, b: (x[:, :40], w, b), lambda x, w, b: (x, w, b[:8]),
], ids=["dtypes that differ", "other columns", "a bias of another length"])
def test_wrong_arguments_raise_what_theirs_raise(kitchen, make, change):
    arguments = change(randn(4, 48).bfloat16().to("mps"), make(to_mps(randn(16, 48).to(E4M3)), torch.tensor(1.0)),
                       randn(16).bfloat16().to("mps"))
    with pytest.raises(RuntimeError) as ours:
        F.linear(*arguments)
    kitchen.ours.uninstall()
    with pytest.raises(RuntimeError) as theirs:
        F.linear(*arguments)
    assert str(ours.value) == str(theirs.value)
    assert taken(kitchen) == (0, 1), "passed on, and counted"


@pytest.mark.parametrize("scale, said", [
    (None, "an FP8 weight of 16x48 came without its scale: the file says that the layer is quantised, and has no "
           "weight_scale for it"),
    (torch.ones(3), r"of 16x48 came with a scale of shape \[3\]: to be one value, or \[16, 1\], one a row"),
    (torch.ones(5, 1), r"a scale of shape \[5, 1\]"), (torch.ones(16), r"a scale of shape \[16\]"),
    (torch.ones(48), r"a scale of shape \[48\]"), (torch.ones(1, 48), r"a scale of shape \[1, 48\]"),
    (torch.ones(16, 48), r"a scale of shape \[16, 48\]"), (torch.ones(1, 1, 1), r"a scale of shape \[1, 1, 1\]"),
    (torch.ones(0), r"a scale of shape \[0\]"),
], ids=["missing", "of three", "of five rows", "rows in a row", "columns", "columns in a row", "one for each value",
        "three dimensions", "none"])
@pytest.mark.parametrize("fp8", [E4M3, E5M2], ids=str)
def test_a_damaged_file_is_told_in_a_sentence(kitchen, make, fp8, scale, said):
    """And never computed without its scale, or with one that is meant otherwise."""
    weight = make(to_mps(randn(16, 48).to(fp8)), torch.tensor(1.0))
    object.__setattr__(weight.params, "scale", scale if scale is None else scale.to("mps"))
    for x in (randn(4, 48).bfloat16().to("mps"), make(to_mps(randn(4, 48).to(E4M3)), torch.tensor(1.0))):
        with pytest.raises(ValueError, match=said):
            F.linear(x, weight)
    assert taken(kitchen) == (0, 0)


def test_a_square_weight_with_its_scales_in_a_row(kitchen, make):
    """The CPU takes them for columns' as well: nothing says what they are."""
    weight = make(to_mps(randn(48, 48).to(E4M3)), torch.linspace(0.1, 0.5, 48))
    with pytest.raises(ValueError, match=r"of 48x48 came with a scale of shape \[48\]: to be one value, or \[48, 1\]"):
        F.linear(randn(5, 48).bfloat16().to("mps"), weight)


@pytest.mark.parametrize("scale", [torch.tensor(0.5), torch.tensor([0.5]), torch.tensor([[0.5]])], ids=["", "1", "1 1"])
def test_one_value_in_every_form(kitchen, make, scale):
    x, values = randn(3, 48).to("mps"), randn(16, 48).to(E4M3)
    actual = F.linear(x, make(to_mps(values), scale, torch.float32))
    torch.testing.assert_close(actual.cpu(), x.cpu() @ (values.float() * 0.5).t())
    assert taken(kitchen) == (1, 0)


def test_on_the_CPU_it_is_theirs(kitchen, make):
    x, values = randn(4, 48).bfloat16(), randn(16, 48).to(E4M3)
    F.linear(x, make(values, torch.tensor(1.0)))
    assert taken(kitchen) == (0, 0)


def test_switched_off_it_is_theirs(kitchen, make):
    weight = make(to_mps(randn(16, 48).to(E4M3)), torch.tensor(1.0))
    x = randn(4, 48).bfloat16().to("mps")
    with kitchen.kernels.using(fp8="off"), pytest.raises(RuntimeError, match="Undefined type Float8_e4m3fn"):
        F.linear(x, weight)
    assert taken(kitchen) == (0, 1)


def test_under_autograd(kitchen, make):
    """The gradient of x, as training a LoRA on an FP8 model needs it."""
    values = randn(16, 48).to(E4M3)
    grads = []
    for device in ("cpu", "mps"):
        x = randn(4, 48, seed=1).to(device).requires_grad_()
        weight = make(to_mps(values) if device == "mps" else values, torch.tensor(0.5), torch.float32)
        F.linear(x, weight).sum().backward()
        grads.append(x.grad.cpu())
    torch.testing.assert_close(*grads)
    assert taken(kitchen) == (1, 0)


class TestTheTable:
    def table(self, kitchen):
        return kitchen.private.handlers(LINEAR)

    def test_the_previous_handler_comes_back(self, package):
        package.ours.uninstall()
        before = dict(self.table(package))
        package.ours.install()
        layout = package.tensor.TensorCoreFP8Layout
        assert self.table(package)[layout] is not before[layout]
        assert {key: value for key, value in self.table(package).items() if key is not layout} == {
            key: value for key, value in before.items() if key is not layout}
        package.ours.uninstall()
        assert dict(self.table(package)) == before

    def test_a_subclass_with_a_handler_of_its_own_too(self, package):
        """As a newer ComfyUI may have: its layouts e4m3fn and e5m2 are subclasses."""
        class Layout(package.tensor.TensorCoreFP8Layout):
            pass

        class Inherits(package.tensor.TensorCoreFP8Layout):
            pass

        @package.tensor.register_layout_op(LINEAR, Layout)
        def theirs(tensor, args, kwargs):
            return "theirs"

        package.ours.uninstall()
        try:
            package.ours.install()
            assert self.table(package)[Layout] is not theirs and Inherits not in self.table(package)
            assert self.table(package)[Layout](None, (torch.zeros(1), torch.zeros(1)), {}) == "theirs"
            package.ours.uninstall()
            assert self.table(package)[Layout] is theirs
        finally:
            package.ours.uninstall()
            del self.table(package)[Layout]

    def test_a_layout_with_a_meaning_of_its_own_is_left_alone(self, package):
        class Layout(package.tensor.TensorCoreFP8Layout):
            @classmethod
            def dequantize(cls, qdata, params):
                return qdata

        @package.tensor.register_layout_op(LINEAR, Layout)
        def theirs(tensor, args, kwargs):
            return "theirs"

        package.ours.uninstall()
        try:
            package.ours.install()
            assert self.table(package)[Layout] is theirs
        finally:
            package.ours.uninstall()
            del self.table(package)[Layout]

    def test_another_pack_that_stood_before_ours_stays(self, kitchen, make):
        layout = kitchen.tensor.TensorCoreFP8Layout
        ours, calls = self.table(kitchen)[layout], []

        def later(tensor, args, kwargs):
            calls.append(args)
            return ours(tensor, args, kwargs)

        kitchen.tensor.register_layout_op(LINEAR, layout)(later)
        weight, x = make(to_mps(randn(16, 48).to(E4M3)), torch.tensor(1.0)), randn(4, 48).bfloat16().to("mps")
        kitchen.ours.uninstall()
        try:
            assert self.table(kitchen)[layout] is later
            F.linear(x, weight)
            assert len(calls) == 1 and taken(kitchen) == (0, 0), "ours is asleep"
        finally:
            kitchen.private.handlers(LINEAR)[layout] = next(
                cell.cell_contents for name, cell in zip(ours.__code__.co_freevars, ours.__closure__, strict=True)
                if name == "theirs")


class TestQuantisedTensors:
    """What a LoRA on FP8 needs: to float, changed, and back."""

    @pytest.mark.parametrize("fp8", [E4M3, E5M2], ids=str)
    def test_from_float_and_back_are_the_CPUs(self, kitchen, fp8):
        x, made = randn(32, 64).bfloat16(), []
        for device in ("cpu", "mps"):
            weight = kitchen.tensor.QuantizedTensor.from_float(x.to(device), "TensorCoreFP8Layout", dtype=fp8)
            made.append((kitchen.private.data(weight), weight.params.scale, weight.dequantize()))
        same(made[1], made[0])
        assert kitchen.function_counts("quantize_per_tensor_fp8") == (1, 0)
        assert kitchen.function_counts("dequantize_per_tensor_fp8") == (1, 0)

    @pytest.mark.parametrize("layout", ["TensorCoreFP8Layout", "TensorCoreMXFP8Layout", "TensorCoreNVFP4Layout"])
    def test_requantised_after_a_lora(self, kitchen, layout):
        x, delta, made = randn(32, 64).bfloat16(), randn(32, 64, seed=1).bfloat16() * 0.01, []
        for device in ("cpu", "mps"):
            weight = kitchen.tensor.QuantizedTensor.from_float(x.to(device), layout)
            again = weight.requantize_from_float(weight.dequantize() + delta.to(device))
            made.append((kitchen.private.data(again), again.params.scale, again.dequantize()))
        same(made[1], made[0])

    def test_stochastic_rounding_is_ours(self, kitchen):
        x = randn(32, 64)
        random = torch.randint(0, 256, x.shape, dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
        for fp8 in (E4M3, E5M2):
            same(kitchen.package.stochastic_rounding_fp8(x.to("mps"), random.to("mps"), fp8),
                 kitchen.package.stochastic_rounding_fp8(x, random, fp8))
        assert kitchen.function_counts("stochastic_rounding_fp8") == (2, 0)

    def test_moved_cloned_viewed_and_saved(self, kitchen, make):
        values = randn(16, 48).to(E4M3)
        weight = make(values, torch.tensor(0.5)).to("mps")
        assert weight.device.type == "mps"
        same(kitchen.private.data(weight.clone()), values)
        same(kitchen.private.data(weight.t()).contiguous(), values.t().contiguous())
        same(weight.cpu().dequantize(), make(values, torch.tensor(0.5)).dequantize())
        saved = weight.state_dict("w")
        same((saved["w"], saved["w_scale"]), (values, torch.tensor(0.5)))
