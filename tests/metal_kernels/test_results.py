"""What a patch gives back that its op cannot give: it reaches nobody."""

import dataclasses

import pytest
import torch
import torch.nn.functional as F


@pytest.mark.parametrize(
    ("result", "described"),
    [
        (lambda x: None, "aten.constant_pad_nd.default gave None."),
        (lambda x: torch.zeros(5), "aten.constant_pad_nd.default gave float32 (5,) on cpu."),
        (lambda x: [x], "aten.constant_pad_nd.default gave (float32 (3,) on mps)."),
        (lambda x: 5.0, "aten.constant_pad_nd.default gave a float."),
        (
            lambda x: x.new_zeros(4),
            "aten.constant_pad_nd.default gave float32 (4,) on mps; its arguments ask for float32 (5,).",
        ),
    ],
    ids=("None", "CPU tensor", "list", "number", "shape"),
)
def test_a_result_that_cannot_be_reaches_nobody(install, make_kernel, mps, result, described):
    """The kernel is latched, and stock serves that very call, or says what is wrong with it."""
    installation = install(make_kernel(run=lambda x, *a: result(x)))
    assert F.pad(torch.ones(3, device=mps), (1, 1)).tolist() == [0, 1, 1, 1, 0]
    assert installation.switches["constant_pad_nd"].state == ("failed", described)
    counts = installation.patcher.counters["constant_pad_nd"].as_dict()
    assert (counts["taken"], counts["passed"]) == (0, 1)


def test_a_later_result_on_the_wrong_device_reaches_nobody(install, make_kernel, mps, took):
    installation = install(make_kernel(supports=lambda x, pad, value=0: pad[0] == 1))
    x = torch.ones(3, device=mps)
    assert took(F.pad(x, (1, 1)))
    ((patch, switch),) = installation.patcher.overrides["constant_pad_nd"].candidates
    right, results = patch.run, iter((None, torch.zeros(5)))
    wrong = dataclasses.replace(patch, run=lambda *a: next(results))
    installation.patcher.register("constant_pad_nd", [(wrong, switch)])
    assert F.pad(x, (1, 1)).tolist() == [0, 1, 1, 1, 0] and switch.failure.endswith("gave None.")
    switch.failure = None
    switch.refresh()
    assert F.pad(x, (1, 1)).tolist() == [0, 1, 1, 1, 0] and switch.failure.endswith("gave float32 (5,) on cpu.")
    switch.failure = None
    installation.patcher.register("constant_pad_nd", [(dataclasses.replace(patch, run=right), switch)])
    assert took(F.pad(x, (1, 1)))


def test_results_of_other_kinds(core):
    """In-place ops return their argument, wherever it is; several tensors, some not asked for; a number."""

    def check(op, overload="default"):
        return core.results.kind_check(getattr(getattr(torch.ops.aten, op), overload)._schema, "CPU")

    x, meta = torch.zeros(2), torch.zeros(2, device="meta")
    assert check("relu")(x) and not check("relu")(meta) and not check("relu")(None)
    assert check("copy_")(meta) and not check("copy_")(None) and check("add", "out")(meta)
    assert check("topk")((x, x)) and check("topk")([x, None])
    assert not check("topk")((x,)) and not check("topk")((x, meta)) and not check("topk")(x)
    assert check("_local_scalar_dense")(1.5) and not check("_local_scalar_dense")(None)
    assert not check("_local_scalar_dense")(x)


def test_a_shape_that_torch_cannot_tell_is_not_compared(core):
    """The shape depends on the data."""
    x = torch.ones(3)
    core.results.expect_shape(torch.ops.aten.masked_select.default, (x, x > 0), {}, x)
    with pytest.raises(core.results.WrongResult, match="gave float32 \\(2,\\) on cpu; .* ask for float32 \\(3,\\)"):
        core.results.expect_shape(torch.ops.aten.relu.default, (x,), {}, x[:2])
