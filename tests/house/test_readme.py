"""What README says of the kernels is true of the library."""

import re

import pytest
from pack import ROOT, load

README = (ROOT / "README.md").read_text(encoding="utf-8")


def kernel_table():
    """name -> the cells of its line in the table of kernels"""
    section = README.split("\n## The kernels\n")[1].split("\n### ")[0]
    lines = [[cell.strip() for cell in line.strip("|").split("|")] for line in section.splitlines() if line[:1] == "|"]
    assert lines[0] == ["kernel", "PyTorch operations", "what stock MPS does", "what the kernel does",
                        "not needed from", "switched off by"]  # fmt: skip
    return {line[0].strip("`"): line for line in lines[2:]}


def test_every_kernel_is_listed_with_its_way_out():
    names = [kernel.name for kernel in load().metal_kernels.KERNELS]
    table = kernel_table()
    assert list(table) == names
    assert all(table[name][5] == f"`METAL_KERNELS={name}=off`" and all(table[name]) for name in names)


@pytest.mark.parametrize("kernel, feature", [
    ("pad", "pad"), ("softmax", "softmax"), ("linear", "linear_one_row"), ("grouped_mm", "grouped_mm"),
])  # fmt: skip
def test_the_release_from_which_it_is_not_needed(kernel, feature):
    """As in the table of releases that decides."""
    import importlib

    environment = importlib.import_module(f"{load().metal_kernels.__name__}.environment")
    good = min(release for release, stock in environment.TABLE[feature].items() if stock.good)
    assert f"torch {good[0]}.{good[1]}" in kernel_table()[kernel][4]


def test_every_function_of_ops_is_named():
    import importlib

    ops = importlib.import_module(f"{load().metal_kernels.__name__}.ops")
    paragraph = README.split("The kernels are there as plain functions too")[1].split("```")[0]
    named = set(re.findall(r"`(\w+)`", paragraph))
    assert {name for name in ops.__all__ if not name.endswith("_backward")} <= named
