"""The names of comfy-kitchen without a public one, in the real package; and where ours may mention them."""
import ast

import torch
from kitchen_toys import randn
from pack import ROOT


def test_the_names_are_there(package):
    package.private.check(package.registry)
    assert package.private.priority(package.registry)[-1] == "eager"
    assert package.private.backend(package.registry, "eager") is package.eager
    assert package.private.backend(package.registry, "nobody") is None
    handlers = package.private.handlers(torch.ops.aten.linear.default)
    assert callable(handlers[package.tensor.TensorCoreFP8Layout])
    values = randn(4, 8).to(torch.float8_e4m3fn)
    params = package.tensor.TensorCoreFP8Layout.Params(
        scale=torch.tensor(2.0), orig_dtype=torch.bfloat16, orig_shape=(4, 8))
    assert package.private.data(package.tensor.QuantizedTensor(values, "TensorCoreFP8Layout", params)) is values


def test_forgetting_a_backend_leaves_nothing_of_it(package):
    before = package.snapshot()
    constraints = package.registry.get_constraints("eager", "adaln")
    package.registry.register("made_up", package.eager, {"adaln": constraints})
    package.registry.disable("made_up")
    package.private.forget_backend(package.registry, "made_up")
    assert package.snapshot() == before


def test_the_public_names_are_there(package):
    for name in ("register", "set_priority", "disable", "enable", "get_constraints", "list_backends"):
        assert callable(getattr(package.registry, name))
    assert callable(package.tensor.register_layout_op)
    parameters = package.registry.get_constraints("eager", "quantize_mxfp8")
    assert {"params", "default_devices", "call_rules"} <= set(vars(parameters))


PRIVATE = {"_backends", "_capabilities", "_constraints", "_priority", "_disabled", "_unavailable", "_lock", "_qdata",
           "_params", "_layout_cls", "_LAYOUT_DISPATCH_TABLE", "_DISPATCH_TABLE"}


def test_private_names_stand_in_one_file():
    found = []
    for path in sorted((ROOT / "nodes" / "fp8").rglob("*.py")):
        if path.name == "private.py":
            continue
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            name = node.attr if isinstance(node, ast.Attribute) else getattr(node, "value", None)
            if isinstance(name, str) and name in PRIVATE:
                found.append(f"{path.relative_to(ROOT)}:{node.lineno}: {ast.unparse(node)}")
    assert found == []
