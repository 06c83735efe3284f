"""comfy-kitchen's backend "metal" in the real package: what it takes, what it leaves, its results against eager's."""
import functools
import re
import types

import pytest
import torch
from kitchen_toys import randn, same, to_mps
from pack import ROOT

E4M3, E5M2 = torch.float8_e4m3fn, torch.float8_e5m2
WIDE = torch.float32, torch.float16, torch.bfloat16
OURS = ("dequantize_per_tensor_fp8", "quantize_per_tensor_fp8", "stochastic_rounding_fp8", "quantize_mxfp8",
        "dequantize_mxfp8", "dequantize_nvfp4")


def calls(kitchen):
    """function -> kwargs on the CPU, of every kind that ours take."""
    eager = kitchen.eager
    random = torch.randint(0, 256, (70, 64), dtype=torch.uint8, generator=torch.Generator().manual_seed(1))
    for wide in WIDE:
        x = randn(70, 64).to(wide)
        mx, mx_scales = eager.quantize_mxfp8(x)
        nv, nv_scales = eager.quantize_nvfp4(x, torch.tensor(0.002))
        for scale in (torch.tensor(0.0123), torch.tensor([[0.0123]]), torch.linspace(0.01, 0.2, 70)[:, None]):
            for fp8 in (E4M3, E5M2):
                yield "quantize_per_tensor_fp8", dict(x=x, scale=scale, output_type=fp8)
                yield "dequantize_per_tensor_fp8", dict(x=randn(70, 64).to(fp8), scale=scale, output_type=wide)
        for fp8 in (E4M3, E5M2):
            yield "stochastic_rounding_fp8", dict(x=x, rng=random, output_type=fp8)
        yield "quantize_mxfp8", dict(x=x, pad_32x=False)
        yield "quantize_mxfp8", dict(x=randn(70, 50).to(wide), pad_32x=True)
        yield "dequantize_mxfp8", dict(qx=mx, block_scales=mx_scales, output_type=wide)
        yield "dequantize_nvfp4", dict(qx=nv, per_tensor_scale=torch.tensor(0.002), block_scales=nv_scales,
                                       output_type=wide)


def on_mps(kwargs):
    return {name: to_mps(value) if isinstance(value, torch.Tensor) else value for name, value in kwargs.items()}


def test_it_is_asked_first_and_has_just_its_functions(kitchen):
    found = kitchen.package.list_backends()["metal"]
    assert found["available"] and not found["disabled"] and found["capabilities"] == sorted(OURS)
    assert kitchen.private.priority(kitchen.registry)[0] == "metal"
    assert kitchen.ours.report() == {"installed": True, "functions": list(OURS), "held": {}, "problems": []}


def test_bit_for_bit_what_eager_gives(kitchen):
    """Of numbers; test_kitchen_ends.py has the ends of what can be written."""
    seen = {}
    for name, kwargs in calls(kitchen):
        expected = getattr(kitchen.eager, name)(**{key: value.clone() if isinstance(value, torch.Tensor) else value
                                                   for key, value in kwargs.items()})
        same(getattr(kitchen.package, name)(**on_mps(kwargs)), expected)
        seen[name] = seen.get(name, 0) + 1
        assert kitchen.function_counts(name) == (seen[name], 0), (name, kwargs)
    assert set(seen) == set(OURS)


def test_a_scale_may_wait_on_the_CPU(kitchen):
    x = randn(8, 32).to(E4M3)
    for scale in (torch.tensor(0.5), torch.tensor(0.5, dtype=torch.bfloat16)):
        same(kitchen.package.dequantize_per_tensor_fp8(to_mps(x), scale, torch.bfloat16),
             kitchen.eager.dequantize_per_tensor_fp8(x, scale, torch.bfloat16))
    assert kitchen.function_counts("dequantize_per_tensor_fp8") == (2, 0)


def test_nothing_sizes(kitchen):
    x, empty = torch.tensor(1.5).to(E4M3), torch.zeros(0, 32).to(E4M3)
    for value in (x, empty):
        same(kitchen.package.dequantize_per_tensor_fp8(to_mps(value), torch.tensor(2.0), torch.float16),
             kitchen.eager.dequantize_per_tensor_fp8(value, torch.tensor(2.0), torch.float16))


@pytest.mark.parametrize("name, kwargs, said", [
    ("dequantize_per_tensor_fp8", dict(x=randn(4, 4).to(E4M3), scale=torch.ones(4), output_type=WIDE[2]),
     "neither one value nor one a row"),
    ("dequantize_per_tensor_fp8", dict(x=randn(4).to(E4M3), scale=torch.ones(1, 1), output_type=WIDE[2]),
     "neither one value nor one a row"),
    ("dequantize_per_tensor_fp8", dict(x=randn(4, 8).to(E4M3).t(), scale=torch.ones(()), output_type=WIDE[2]),
     "not contiguous"),
    ("quantize_per_tensor_fp8", dict(x=randn(4, 4), scale=torch.ones(4), output_type=E5M2),
     "neither one value nor one a row"),
    ("stochastic_rounding_fp8", dict(x=randn(4, 4), rng=torch.zeros(1, 4, dtype=torch.uint8), output_type=E4M3),
     "is not that of x"),
], ids=["a scale a column", "a scale that adds a dimension", "a transposed x", "quantise by column", "broadcast rng"])
def test_what_ours_cannot_take_eager_takes(kitchen, name, kwargs, said):
    refused = kitchen.registry.validate_backend_for_call("metal", name, on_mps(kwargs))
    assert not refused.success and said in refused.failure_reason
    assert kitchen.registry.get_capable_backend(name, on_mps(kwargs)) == "eager"
    # The aten ops that eager is made of are the kernel's too.
    same(getattr(kitchen.package, name)(**on_mps(kwargs)), getattr(kitchen.eager, name)(**kwargs))
    assert kitchen.function_counts(name)[0] == 0


@pytest.mark.parametrize("name, kwargs, said", [
    ("quantize_mxfp8", dict(x=randn(4, 33), pad_32x=False), "multiple of 32"),
    ("dequantize_mxfp8", dict(qx=randn(4, 32).to(E4M3), output_type=WIDE[0],
                              block_scales=torch.zeros(9, dtype=torch.uint8).view(torch.float8_e8m0fnu)), "to be 512"),
    ("dequantize_nvfp4", dict(qx=torch.zeros(4, 32, dtype=torch.uint8), per_tensor_scale=torch.ones(2),
                              block_scales=torch.zeros(128, 4).to(E4M3), output_type=WIDE[0]), "not one value"),
], ids=["columns", "too few block scales", "two scales"])
def test_wrong_arguments_get_eagers_own_error(kitchen, name, kwargs, said):
    refused = kitchen.registry.validate_backend_for_call("metal", name, on_mps(kwargs))
    assert not refused.success and said in refused.failure_reason
    with pytest.raises(Exception) as theirs:
        getattr(kitchen.eager, name)(**kwargs)
    with pytest.raises(type(theirs.value)) as ours:
        getattr(kitchen.package, name)(**on_mps(kwargs))
    assert str(ours.value).splitlines()[0] == str(theirs.value).splitlines()[0]


def test_other_devices_are_not_ours(kitchen):
    x = randn(4, 32)
    assert kitchen.registry.get_capable_backend("quantize_mxfp8", {"x": x, "pad_32x": False}) == "eager"
    kitchen.package.quantize_mxfp8(x)
    assert kitchen.function_counts("quantize_mxfp8") == (0, 0)


def test_no_function_of_others_is_shadowed(kitchen):
    """Each of eager's functions: ours if it is one of ours, else found where it was found before."""
    others = kitchen.package.list_backends()["eager"]["capabilities"]
    assert set(OURS) < set(others)
    for name in others:
        assert kitchen.registry.get_capable_backend(name) == ("metal" if name in OURS else "eager")
        assert kitchen.registry.get_implementation(name, backend="eager") is getattr(kitchen.eager, name)


def test_the_table_in_the_docs_names_every_function(kitchen):
    text = (ROOT / "nodes" / "fp8" / "kitchen" / "FUNCTIONS.md").read_text(encoding="utf-8")
    lines = [line for line in text.splitlines() if line.startswith("| `")]
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
    whose = {name: row[1] for row in rows for name in re.findall(r"`(\w+)`", row[0])}
    assert all(len(row) == 3 and row[2] for row in rows)
    assert {name for name, owner in whose.items() if owner == "**metal**"} == set(OURS)
    assert set(whose.values()) == {"**metal**", "eager"}
    assert set(kitchen.package.list_backends()["eager"]["capabilities"]) - set(whose) == set()


class TestSwitchedOff:
    x = randn(4, 32)

    def backend(self, kitchen):
        return kitchen.registry.get_capable_backend("quantize_mxfp8", {"x": self.x.to("mps"), "pad_32x": False})

    def test_by_mode(self, kitchen):
        assert self.backend(kitchen) == "metal"
        kitchen.kernels.set_mode(fp8="off")
        try:
            assert self.backend(kitchen) == "eager"
            kwargs = {"x": self.x.to("mps"), "pad_32x": False}
            with pytest.raises(kitchen.package.NoCapableBackendError, match="fp8 is not in use: off: switched off"):
                kitchen.registry.get_implementation("quantize_mxfp8", "metal", kwargs)
        finally:
            kitchen.kernels.set_mode(fp8="on")

    def test_in_a_context_and_by_a_workflow(self, kitchen):
        with kitchen.kernels.using(fp8="off"):
            assert self.backend(kitchen) == "eager"
        assert self.backend(kitchen) == "metal"
        kitchen.kernels.set_workflow({"fp8": "off"})
        try:
            assert self.backend(kitchen) == "eager"
        finally:
            kitchen.kernels.set_workflow(None)
        assert self.backend(kitchen) == "metal"

    def test_the_known_crash_is_back(self, kitchen):
        """So that it is the backend that repairs it."""
        values, scale = self.x.to(E4M3), torch.tensor(2.0)
        with kitchen.kernels.using(fp8="off"), pytest.raises(RuntimeError, match="Undefined type Float8_e4m3fn"):
            kitchen.package.dequantize_per_tensor_fp8(to_mps(values), scale, torch.bfloat16)

    def test_after_a_failure(self, kitchen, monkeypatch):
        """A kernel that raises where eager does not is latched as failed; the result is eager's."""
        switch = kitchen.kernels._installation.switches["fp8"]

        def broken(*_):
            raise RuntimeError("not today")

        backend = kitchen.private.backend(kitchen.registry, "metal")
        monkeypatch.setattr(backend, "_fp8", type("Broken", (), {"stochastic_rounding": staticmethod(broken)}))
        random = torch.zeros(4, 32, dtype=torch.uint8)
        try:
            result = kitchen.package.stochastic_rounding_fp8(self.x.to("mps"), random.to("mps"), E4M3)
            assert "It raised RuntimeError: not today" in switch.failure
            same(result, kitchen.eager.stochastic_rounding_fp8(self.x, random, E4M3))
            assert self.backend(kitchen) == "eager"
        finally:
            switch.failure = None
            switch.refresh()


class TestUndone:
    def test_exactly(self, package):
        package.ours.uninstall()
        before = package.snapshot()
        package.ours.install()
        assert package.snapshot() != before
        package.ours.install()  # once is enough
        package.ours.uninstall()
        assert package.snapshot() == before
        package.ours.uninstall()
        assert package.snapshot() == before and package.ours.report()["installed"] is False

    def test_with_others_changes_kept(self, kitchen):
        kitchen.package.set_backend_priority(["eager", "metal", "triton"])
        kitchen.ours.uninstall()
        try:
            assert kitchen.private.priority(kitchen.registry) == ["eager", "triton"]
        finally:
            kitchen.package.set_backend_priority(["cuda", "triton", "eager"])

    def test_a_backend_that_took_ours_place_stays(self, kitchen):
        kitchen.registry.register("metal", kitchen.eager, {})
        kitchen.ours.uninstall()
        try:
            assert kitchen.private.backend(kitchen.registry, "metal") is kitchen.eager
            assert kitchen.private.priority(kitchen.registry)[0] == "metal"
        finally:
            kitchen.private.forget_backend(kitchen.registry, "metal")
            kitchen.package.set_backend_priority(["cuda", "triton", "eager"])

    def test_a_user_may_disable_it(self, kitchen):
        kitchen.package.disable_backend("metal")
        x = randn(4, 32).to("mps")
        assert kitchen.registry.get_capable_backend("quantize_mxfp8", {"x": x, "pad_32x": False}) == "eager"
        kitchen.package.enable_backend("metal")
        assert kitchen.registry.get_capable_backend("quantize_mxfp8", {"x": x, "pad_32x": False}) == "metal"


class TestBesideOthers:
    def test_another_pack_holds_a_function_of_eager(self, kitchen, monkeypatch):
        """As ComfyUI-AppleSilicon-FP8 does, before our pack is loaded or after: its function stays in charge."""
        module = {"__name__": "/comfy/custom_nodes/ComfyUI-AppleSilicon-FP8._patches.comfykitchen_fp8", "torch": torch}
        theirs = types.FunctionType((lambda x, scale, output_type: torch.full((1,), 9.0)).__code__, module)
        functools.update_wrapper(theirs, kitchen.eager.dequantize_per_tensor_fp8)
        monkeypatch.setattr(kitchen.eager, "dequantize_per_tensor_fp8", theirs)
        values = to_mps(randn(4, 32).to(E4M3))
        result = kitchen.package.dequantize_per_tensor_fp8(values, torch.tensor(1.0), torch.float32)
        assert result.tolist() == [9.0]
        x = randn(4, 32).to("mps")
        assert kitchen.registry.get_capable_backend("quantize_mxfp8", {"x": x, "pad_32x": False}) == "metal", "the rest"
        assert kitchen.ours.notes(kitchen.ours.report()) == [
            "ComfyUI-AppleSilicon-FP8 holds comfy-kitchen's dequantize_per_tensor_fp8, which stay with it"]

    def test_a_backend_of_that_name_is_there_already(self, package):
        package.ours.uninstall()
        package.registry.register("metal", package.eager, {})
        before = package.snapshot()
        try:
            package.ours.install()
            report = package.ours.report()
            assert "has a backend named metal already" in report["problems"][0] and report["functions"] == []
            assert package.snapshot()[:-1] == before[:-1], "the handlers are ours all the same"
            package.ours.uninstall()
            assert package.snapshot() == before
        finally:
            package.private.forget_backend(package.registry, "metal")

    @pytest.mark.parametrize("name", ["_priority", "_backends"])
    def test_a_comfy_kitchen_that_has_changed(self, package, monkeypatch, caplog, name):
        package.ours.uninstall()
        with monkeypatch.context() as patch:
            patch.delattr(package.registry, name)
            package.ours.install()
        try:
            assert package.ours.report()["problems"] == [f"this comfy-kitchen's BackendRegistry has no {name}"]
            assert f"has no {name}" in caplog.text
        finally:
            package.ours.uninstall()
        assert "metal" not in package.package.list_backends()

    def test_a_function_with_parameters_that_ours_does_not_know(self, package, monkeypatch):
        def dequantize_mxfp8(qx, block_scales, output_type=torch.bfloat16, rotate=False):
            return package.eager.dequantize_mxfp8

        package.ours.uninstall()
        monkeypatch.setattr(package.eager, "dequantize_mxfp8", dequantize_mxfp8)
        package.ours.install()
        try:
            assert set(package.ours.report()["functions"]) == set(OURS) - {"dequantize_mxfp8"}
        finally:
            package.ours.uninstall()
