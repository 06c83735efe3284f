"""What a linked input may carry: numpy's numbers as well as Python's, and everything that is no number at all."""
import importlib
from fractions import Fraction

import numpy
import pytest
import torch
from pack import load

HUGE = pytest.param(10**5000, "the int of thousands of digits", id="huge")  # Python writes no more than 4300


@pytest.fixture(scope="module")
def given():
    return importlib.import_module(f"{load().__name__}.nodes.given")


@pytest.mark.parametrize("thing", [40, 40.0, numpy.float32(40), numpy.float64(40), numpy.int64(40), Fraction(40)])
def test_every_number_is_a_float(given, thing):
    assert type(given.number("n", thing, "")) is float and given.number("n", thing, "") == 40


@pytest.mark.parametrize("thing, named", [
    ("40", "the str '40'"), (None, "nothing (None)"), (True, "the bool True"), (1j, "of type complex"),
    (torch.zeros(2, 2), "of type Tensor"), (10**400, f"the int {10**36}..."), HUGE,
])
def test_what_is_no_number_is_named_in_one_sentence(given, thing, named):
    with pytest.raises(given.Unfit) as caught:
        given.number("min_psnr", thing, "give a number.")
    assert str(caught.value) == f"min_psnr is {named}: give a number."


@pytest.mark.parametrize("thing", [3, numpy.int64(3), numpy.uint8(3), torch.tensor(3)])
def test_every_whole_number_is_an_int(given, thing):
    assert type(given.whole("size", thing, 1, "")) is int and given.whole("size", thing, 1, "") == 3


@pytest.mark.parametrize("thing, named", [
    (0, "0"), (-7, "-7"), (3.0, "the float 3.0"), (True, "the bool True"), ("3", "the str '3'"),
    (torch.zeros(2), "of type Tensor"), (None, "nothing (None)"),
])
def test_what_is_no_such_whole_number_is_named(given, thing, named):
    with pytest.raises(given.Unfit) as caught:
        given.whole("size", thing, 1, "give one.")
    assert str(caught.value) == f"size is {named}: give one."


@pytest.mark.parametrize("thing, means", [
    (True, True), (False, False), (numpy.bool_(True), True), (numpy.bool_(False), False), (1, True), (0, False),
    (numpy.int32(2), True),
])
def test_every_flag_is_a_bool(given, thing, means):
    assert given.flag("exact", thing) is means


@pytest.mark.parametrize("thing, named", [("yes", "the str 'yes'"), (1.0, "the float 1.0"), (None, "nothing (None)")])
def test_what_is_no_flag_is_named(given, thing, named):
    with pytest.raises(given.Unfit) as caught:
        given.flag("exact", thing)
    assert str(caught.value) == f"exact is {named}: give true or false."


@pytest.mark.parametrize("thing, named", [("c", "'c'"), ("x" * 99, f"'{'x' * 36}..."), (3, "the int 3"),
                                          (["a"], "of type list"), (torch.zeros(2), "of type Tensor")])
def test_what_is_none_of_the_choices_is_named(given, thing, named):
    assert given.choice("region", "a", ("a", "b")) == "a"
    with pytest.raises(given.Unfit) as caught:
        given.choice("region", thing, ("a", "b"))
    assert str(caught.value) == f"region is {named}: choose one of a, b."


@pytest.mark.parametrize("module, name", [
    ("given", "Unfit"), ("parity.values", "ParityError"), ("fp8.header", "ModelFileError"),
    ("fp8.header", "Unfamiliar"),
])
def test_what_a_node_raises_shows_no_path(given, module, name):
    """ComfyUI shows the module of an exception's type, and a pack's modules are named by their place on the disk."""
    kind = getattr(importlib.import_module(f"{load().__name__}.nodes.{module}"), name)
    assert issubclass(kind, given.Unfit) and f"{kind.__module__}.{kind.__qualname__}" == f"metal_kernels.{name}"
