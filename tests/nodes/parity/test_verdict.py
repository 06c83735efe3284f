"""Tolerances, the report's text and its JSON."""
import json
import math
from importlib import import_module

import pytest
import torch
from pack import NAME, load

load()
compare = import_module(f"{NAME}.nodes.parity.compare").compare
report = import_module(f"{NAME}.nodes.parity.report")
values = import_module(f"{NAME}.nodes.parity.values")
Tolerances = import_module(f"{NAME}.nodes.parity.verdict").Tolerances

REFERENCE = torch.linspace(0, 1, 2 * 8 * 8 * 3).reshape(2, 8, 8, 3)
OFF = REFERENCE + 0.01  # 40 dB, as near as float32 has it


def strict(text):
    """Parsed as a browser would: NaN and Infinity are errors."""
    return json.loads(text, parse_constant=lambda word: pytest.fail(f"{word} is not JSON"))


@pytest.mark.parametrize("kept, missed, says", [
    ({"min_psnr": 39.9}, {"min_psnr": 40.1}, "PSNR is 40.00 dB, below the 40.1 dB asked for"),
    ({"max_abs_error": 0.011}, {"max_abs_error": 0.009}, "above the 0.009 allowed"),
    ({"max_rel_error": 11}, {"max_rel_error": 9}, "The largest relative error is 10"),
    ({"min_cosine": 0.99}, {"min_cosine": 0.9999999}, "below the 1 asked for"),
    ({}, {"exact": True}, "The two are not equal: the largest difference is 0.01"),
])
def test_each_tolerance_is_kept_or_missed(kept, missed, says):
    assert compare(OFF, REFERENCE, Tolerances(**kept)).passed
    failed = compare(OFF, REFERENCE, Tolerances(**missed))
    assert not failed.passed and len(failed.failures) == 1
    assert says in failed.failures[0] and failed.failures[0] in failed.text
    assert failed.text.startswith("Parity FAILED")
    assert strict(failed.json)["failures"] == failed.failures


def test_equal_values_pass_everything():
    everything = Tolerances(min_psnr=1000, max_abs_error=1e-9, max_rel_error=1e-9, min_cosine=1, exact=True)
    same = compare(REFERENCE, REFERENCE.clone(), everything)
    assert same.passed and same.text.startswith("Parity passed")


@pytest.mark.parametrize("dtype", [torch.int64, torch.uint64])
def test_exact_means_every_bit_of_an_integer(dtype):
    one, other = (torch.tensor([2**62, 2**53 + last], dtype=dtype) for last in (1, 0))
    assert not compare(one, other, Tolerances(exact=True)).passed
    assert compare(one, one.clone(), Tolerances(exact=True)).passed


def test_nan_on_one_side_fails_whatever_is_asked():
    value = REFERENCE.clone()
    value[0, 0, 0, 0] = math.nan
    found = compare(value, REFERENCE, Tolerances())
    assert not found.passed and "1 of 384 elements are NaN or infinite on one side" in found.text
    both = REFERENCE.clone()
    both[0, 0, 0, 0] = math.nan
    assert compare(value, both, Tolerances(exact=True)).passed


@pytest.mark.parametrize("name", ["min_psnr", "max_abs_error", "max_rel_error", "min_cosine"])
@pytest.mark.parametrize("wrong", [-0.5, math.nan, math.inf])
def test_a_tolerance_that_makes_no_sense_is_named(name, wrong):
    with pytest.raises(values.Unfit, match=f"{name} is {wrong}"):
        Tolerances(**{name: wrong})


def test_a_cosine_above_one_is_named():
    with pytest.raises(values.Unfit, match=r"min_cosine is 1\.5"):
        Tolerances(min_cosine=1.5)


def test_no_error_is_valid_json():
    data = strict(compare(REFERENCE, REFERENCE, Tolerances()).json)
    assert data["psnr_db"] is None and data["psnr_infinite"] is True and data["passed"] is True
    assert data["frames"][0]["psnr_db"] is None


def test_the_json_holds_the_numbers_of_the_text():
    found = compare(OFF, REFERENCE, Tolerances(min_psnr=50))
    data = strict(found.json)
    assert data["psnr_db"] == pytest.approx(40, abs=0.01)
    assert "PSNR 40.00 dB (data range 1: images are 0 to 1)" in found.text
    assert data["rel_error_denominator"] == "max(|reference|, 0.001)" and "of |reference|, at least 0.001" in found.text
    assert data["value"]["shapes"] == [[2, 8, 8, 3]] and "IMAGE (2, 8, 8, 3) float32 on cpu" in found.text
    assert data["kind"] == "IMAGE" and data["psnr_infinite"] is False and len(data["frames"]) == 2


def test_wild_numbers_are_null_in_the_json():
    assert strict(report.as_json({"a": [math.nan, 1.5], "b": (math.inf,)})) == {"a": [None, 1.5], "b": [None]}
