"""The guard: what opinfo.json says of PyTorch's ops still holds. `make test` runs part of it, `make test-full` all."""
import importlib.util
import json
from pathlib import Path

import pytest
import softmetal
import torch

FLOOR = 665
SHARDS = 4
QUICK_EVERY = 5      # one op in five
QUICK_SAMPLES = 3    # of its samples
SLOW = {"max_pool2d_with_indices_backward", "nn.functional.max_pool2d", "nn.functional.max_pool1d",
        "nn.functional.max_pool3d", "nn.functional.unfold", "nn.functional.multi_head_attention_forward", "pca_lowrank",
        "unique", "grid_sampler_3d"}
"""Ops whose samples alone take seconds to make."""
MUST = ("nn.functional.scaled_dot_product_attention", "tensor_split", "as_strided", "as_strided.partial_views",
        "constant_pad_nd", "nn.functional.pad.constant", "nn.functional.linear", "nn.functional.conv2d", "index_put")

spec = importlib.util.spec_from_file_location("softmetal_opinfo", Path(__file__).with_name("opinfo.py"))
opinfo = importlib.util.module_from_spec(spec)
spec.loader.exec_module(opinfo)
TABLE = json.loads(opinfo.TABLE.read_text())
SAME_TORCH = torch.__version__.startswith(TABLE["torch"])  # op_db changes with every release


def disagreements(ops, limit=None):
    softmetal.activate()
    agree = set(TABLE["agree"])
    results = opinfo.run([op for op in ops if opinfo.key(op) in agree], limit, show=False)
    assert results
    return {name: why for name, (why, _) in results.items() if why is not None}


def test_the_table_reaches_the_floor():
    assert len(TABLE["agree"]) >= FLOOR
    assert not set(TABLE["agree"]) & set(TABLE["differ"])
    assert all(any(word in name for word in opinfo.REASONS) for name in TABLE["differ"])
    assert set(TABLE["agree, but need float64, which no Mac has"]) <= set(TABLE["agree"])
    assert {"nn.functional.scaled_dot_product_attention", "tensor_split", "as_strided"} <= set(TABLE["agree"])
    if SAME_TORCH:
        assert {opinfo.key(op) for op in opinfo.operators()} == {*TABLE["agree"], *TABLE["differ"]}


@pytest.mark.parametrize("shard", range(SHARDS))
def test_ops_agree_with_the_cpu(shard):
    """Every fifth op, three samples each, and always the ops that the pack lives on."""
    ops = [op for op in opinfo.operators() if opinfo.key(op) not in SLOW]
    chosen = [op for index, op in enumerate(ops) if index % QUICK_EVERY == 0 or opinfo.key(op) in MUST]
    assert not disagreements(chosen[shard::SHARDS], QUICK_SAMPLES)


@pytest.mark.full
@pytest.mark.parametrize("shard", range(8))
def test_every_op_agrees_with_the_cpu(shard):
    assert not disagreements(opinfo.operators()[shard::8])
