"""The CPU float32 copy: every tensor of it, wherever it hides, and nothing shared with the original."""
from importlib import import_module

import pytest
import torch
from pack import NAME, load
from parity_toys import Model, ToyVAE

load()
cpu_copy = import_module(f"{NAME}.nodes.parity.cpu_copy")


class Helper:
    """A plain object that a module keeps, with a tensor in it."""

    def __init__(self):
        self.factors = [torch.ones(2, dtype=torch.bfloat16)]


def test_all_floating_point_becomes_float32_and_the_rest_stays():
    vae = ToyVAE(torch.bfloat16)
    vae.first_stage_model.register_buffer("steps", torch.tensor([1, 2]))
    with cpu_copy.CpuCopy(vae) as twin:
        model = twin.first_stage_model
        assert {w.dtype for w in model.parameters()} == {torch.float32}
        assert model.scale.dtype == torch.float32 and model.steps.dtype == torch.int64
        assert (twin.vae_dtype, twin.device) == (torch.float32, torch.device("cpu"))
        assert not any(w.requires_grad for w in model.parameters()) and not model.training
        for ours, theirs in zip(vae.first_stage_model.parameters(), model.parameters(), strict=True):
            assert torch.equal(ours.float(), theirs)


def test_nothing_is_shared_even_if_it_is_float32_already():
    vae = ToyVAE(torch.float32)
    with cpu_copy.CpuCopy(vae) as twin:
        for ours, theirs in zip(vae.first_stage_model.parameters(), twin.first_stage_model.parameters(), strict=True):
            assert ours.data_ptr() != theirs.data_ptr()


def test_tensors_that_are_no_parameters_come_along():
    vae = ToyVAE()
    model = vae.first_stage_model
    model.cache = {"map": [torch.ones(2, dtype=torch.float16), None]}
    model.encoder[0].helper = Helper()
    model.half = torch.float16
    with cpu_copy.CpuCopy(vae) as twin:
        copied = twin.first_stage_model
        assert copied.cache["map"][0].dtype == torch.float32 and copied.cache["map"][1] is None
        assert copied.encoder[0].helper.factors[0].dtype == torch.float32
        assert copied.half == torch.float32
    assert model.cache["map"][0].dtype == torch.float16 and model.half == torch.float16


def test_tied_weights_stay_tied_and_count_once():
    vae = ToyVAE()
    vae.first_stage_model.again = vae.first_stage_model.decoder[0]
    assert cpu_copy.weight_bytes(vae) == cpu_copy.weight_bytes(ToyVAE())
    with cpu_copy.CpuCopy(vae) as twin:
        assert twin.first_stage_model.again.weight is twin.first_stage_model.decoder[0].weight


def test_a_module_held_twice_is_copied_once():
    vae = ToyVAE()
    vae.alias = vae.first_stage_model
    assert len(cpu_copy.modules_of(vae)) == 1
    with cpu_copy.CpuCopy(vae) as twin:
        assert twin.alias is twin.first_stage_model


def test_patches_applied_at_each_call_are_folded_in():
    """ComfyUI applies LoRA to a partly loaded model by functions that its layers call on their weights."""
    vae = ToyVAE(torch.float32)
    layer = vae.first_stage_model.decoder[0]
    layer.weight_function = [lambda weight: weight * 2, lambda weight: weight + 1]
    with cpu_copy.CpuCopy(vae) as twin:
        copied = twin.first_stage_model.decoder[0]
        assert torch.equal(copied.weight, layer.weight * 2 + 1) and copied.weight_function == []


def test_a_vae_that_is_a_module_itself():
    model = Model().to(torch.bfloat16)
    with cpu_copy.CpuCopy(model) as twin:
        assert twin is not model and {w.dtype for w in twin.parameters()} == {torch.float32}
    assert {w.dtype for w in model.parameters()} == {torch.bfloat16}


def test_fp8_weights():
    vae = ToyVAE(torch.float32)
    layer = vae.first_stage_model.decoder[0]
    layer.weight = torch.nn.Parameter(layer.weight.data.to(torch.float8_e4m3fn), requires_grad=False)
    with cpu_copy.CpuCopy(vae) as twin:
        assert torch.equal(twin.first_stage_model.decoder[0].weight, layer.weight.to(torch.float32))


def test_methods_bound_to_the_vae_are_bound_to_the_copy():
    vae = ToyVAE()
    vae.run = vae.decode
    with cpu_copy.CpuCopy(vae) as twin:
        assert twin.run.__self__ is twin


@pytest.mark.parametrize("inference", [True, False])
def test_under_inference_mode_and_outside(inference):
    with torch.inference_mode(inference):
        vae = ToyVAE()
    with torch.inference_mode(inference), cpu_copy.CpuCopy(vae) as twin:
        assert twin.decode(torch.ones(1, 8, 2, 2)).shape == (1, 8, 8, 3)


class Wrapper:
    """As packs wrap a VAE to change one thing: whatever it lacks comes from the wrapped one."""

    def __init__(self, inner):
        self.inner = inner

    def __getattr__(self, name):
        return getattr(self.inner, name)


def test_a_wrapper_round_a_vae():
    vae = Wrapper(ToyVAE(torch.bfloat16))
    assert cpu_copy.modules_of(vae) == [vae.first_stage_model]
    with cpu_copy.CpuCopy(vae) as twin:
        assert type(twin) is Wrapper and twin.inner is not vae.inner and twin.vae_dtype == torch.float32
        assert {w.dtype for w in twin.first_stage_model.parameters()} == {torch.float32}
        assert twin.decode(torch.ones(1, 8, 2, 2)).shape == (1, 8, 8, 3)
    assert {w.dtype for w in vae.first_stage_model.parameters()} == {torch.bfloat16}


def test_a_vae_that_knows_itself():
    vae = ToyVAE()
    vae.me = vae
    vae.inner = Wrapper(vae)
    with cpu_copy.CpuCopy(vae) as twin:
        assert twin.me is twin and twin.inner.inner is twin
        assert len(cpu_copy.modules_of(twin)) == 1


class Single(ToyVAE):
    """Insists on its arguments."""

    def __new__(cls, *, key):
        return super().__new__(cls)

    def __init__(self, *, key):
        super().__init__()


def test_a_class_that_cannot_be_made_anew_is_named():
    values = import_module(f"{NAME}.nodes.parity.values")
    with pytest.raises(values.ParityError, match="The VAE's Single can't be copied to the CPU"):
        cpu_copy.CpuCopy(Single(key=1)).__enter__()


def test_a_device_that_model_and_vae_share_as_one_object(mps):
    """deepcopy remembers what it has copied, a device among it; the VAE's own must become the CPU all the same."""
    vae = ToyVAE(torch.float32)
    vae.device = vae.output_device = vae.first_stage_model.to(mps).where = mps
    with cpu_copy.CpuCopy(vae) as twin:
        assert twin.device == twin.output_device == twin.first_stage_model.where == torch.device("cpu")
        assert twin.decode(torch.ones(1, 8, 2, 2)).device.type == "cpu"
