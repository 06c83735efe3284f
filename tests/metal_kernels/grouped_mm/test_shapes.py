"""Random modes, shapes, layouts, offsets and ends, found by hypothesis."""

import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

DTYPES = (torch.float32, torch.float16, torch.bfloat16)


@st.composite
def cases(draw):
    size = st.integers(1, 70)
    dtype = draw(st.sampled_from(DTYPES))
    vector = 16 // dtype.itemsize

    def matrix(rows, columns, groups, seed):
        """Adjacent along one dimension, the other's stride a multiple of 16 bytes, at any offset of the storage."""
        if draw(st.booleans()):
            return matrix_along(columns, rows, groups, seed).mT
        return matrix_along(rows, columns, groups, seed)

    def matrix_along(rows, columns, groups, seed):
        stride = (-(-columns // vector) + draw(st.integers(0, 1))) * vector
        offset = draw(st.integers(0, vector))
        group = rows * stride + draw(st.integers(0, 3))
        storage = torch.randn(
            (groups or 1) * group + offset + stride, generator=torch.Generator().manual_seed(seed)
        ).to(dtype)
        if groups is None:
            return storage.as_strided((rows, columns), (stride, 1), offset)
        return storage.as_strided((groups, rows, columns), (group, stride, 1), offset)

    mode = draw(st.sampled_from(["rows", "columns", "K", "batches"]))
    rows, length, outputs, groups = draw(size), draw(size), draw(size), draw(st.integers(1, 40))
    if mode == "batches":
        groups = min(groups, 4)
    a = matrix(rows, length, groups if mode in ("columns", "batches") else None, 0)
    b = matrix(length, outputs, groups if mode in ("rows", "batches") else None, 1)
    offs = None
    if mode != "batches":
        if mode == "K":
            groups = min(groups, 5)
        divided = {"rows": rows, "columns": outputs, "K": length}[mode]
        ends = draw(st.lists(st.integers(-3, divided + 5), min_size=groups, max_size=groups))
        offs = torch.tensor(sorted(ends) if draw(st.booleans()) else ends, dtype=torch.int32)
    return a, b, offs


@settings(max_examples=60, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
@given(case=cases())
def test_any_product(grouped, case):
    grouped.check(*case)


@settings(max_examples=60, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
@given(
    rows=st.integers(0, 12), candidates=st.integers(1, 700), k=st.integers(0, 32), dtype=st.sampled_from(DTYPES),
    largest=st.booleans(), levels=st.sampled_from([1, 3, 1000]), start=st.integers(0, 5), step=st.integers(1, 3),
)  # fmt: skip
def test_any_topk(grouped, rows, candidates, k, dtype, largest, levels, start, step):
    k = min(k, candidates)
    x = (grouped.random(rows, start + candidates * step) * levels).round().to(dtype)
    x = x[:, start : start + candidates * step : step]
    before = grouped.taken
    values, indices = torch.topk(grouped.twin(x), k, largest=largest)
    assert grouped.taken == before + 1
    order = torch.sort(x.float(), dim=-1, descending=largest, stable=True).indices[:, :k]
    assert torch.equal(indices.cpu(), order) and torch.equal(values.cpu(), torch.topk(x, k, largest=largest).values)
