"""What a kernel leaves unwritten is found when an op reads it; what an op wrote counts as written."""

import pytest
import softmetal
import torch

SOURCE = """
#include <metal_stdlib>
using namespace metal;

// Writes every element but those from `hole` on.
kernel void leaves_a_hole(device int* out [[buffer(0)]], constant long& hole [[buffer(1)]],
                          uint i [[thread_position_in_grid]]) {
  if (i < uint(hole)) out[i] = int(i);
}

kernel void adds(device const int* x [[buffer(0)]], device int* out [[buffer(1)]], uint i [[thread_position_in_grid]]) {
  out[i] = x[i] + 1;
}
"""


@pytest.fixture
def library():
    softmetal.activate()
    return torch.mps.compile_shader(SOURCE)


def holed(library, size=10, hole=7):
    out = torch.empty(size, dtype=torch.int32, device="mps")
    library.leaves_a_hole(out, hole, threads=size)
    return out


@pytest.mark.parametrize(
    "read",
    [
        lambda t: t + 1,
        lambda t: t.cpu(),
        lambda t: t.sum(),
        lambda t: t.clone(),
        lambda t: t[-1].item(),
        lambda t: t.add_(1),
        lambda t: torch.cat([t, t]),
        lambda t: torch.nn.functional.pad(t, (1, 1)),
        lambda t: t.to(torch.float32),
        lambda t: t.view(2, 5).t().contiguous(),
        lambda t: torch.zeros_like(t).copy_(t),
        lambda t: t.tolist(),
        lambda t: torch.ones(10, dtype=torch.int32, device="mps").add_(t),
    ],
)
def test_reading_a_hole_raises(library, read):
    with pytest.raises(RuntimeError, match="leaves_a_hole.*left unwritten"):
        read(holed(library))


def test_the_message_names_op_element_and_kernel(library):
    with pytest.raises(
        RuntimeError,
        match=r"aten::add reads element 7 of a tensor of shape \[10\], which kernel "
        r"'leaves_a_hole' left unwritten",
    ):
        holed(library) + 1
    with pytest.raises(RuntimeError, match=r"reads element 2 of a tensor of shape \[5\]"):
        holed(library)[5:].sum()


def test_the_written_part_may_be_read(library):
    out = holed(library)
    assert out[:7].tolist() == list(range(7))
    assert out[::3][:2].tolist() == [0, 3]
    assert holed(library, hole=10).sum().item() == 45


@pytest.mark.parametrize(
    "write",
    [
        lambda t: t[7:].fill_(1),
        lambda t: t.zero_(),
        lambda t: t.copy_(torch.ones(10, dtype=torch.int32)),
        lambda t: t[7:].copy_(torch.ones(3, dtype=torch.int32, device="mps")),
        lambda t: torch.add(t[:3], 1, out=t[7:]),
        lambda t: t.index_fill_(0, torch.tensor([7, 8, 9], device="mps"), 4),
        lambda t: (t[7::2].fill_(1), t[8].fill_(2)),
        lambda t: t[7:].random_(0, 9),
    ],
)
def test_ops_close_the_hole(library, write):
    out = holed(library)
    write(out)
    assert out.sum().item() >= 0


def chosen(*elements):
    return torch.tensor(elements, device="mps")


GATHERS = {
    "take": lambda t, *e: t.take(chosen(*e)),
    "gather": lambda t, *e: t.gather(0, chosen(*e)),
    "take_along_dim": lambda t, *e: torch.take_along_dim(t, chosen(*e), 0),
    "index_select": lambda t, *e: t.index_select(0, chosen(*e)),
    "index": lambda t, *e: t[chosen(*e)],
    "index from the CPU": lambda t, *e: t[torch.tensor(e)],
    "index by a mask": lambda t, *e: t[torch.zeros(10, dtype=torch.bool, device="mps").index_fill_(0, chosen(*e), 1)],
    "index of two": lambda t, *e: t.view(2, 5)[chosen(*e) // 5, chosen(*e) % 5],
    "masked_select": lambda t, *e: t.masked_select(
        torch.zeros(10, dtype=torch.bool, device="mps").index_fill_(0, chosen(*e), 1)),
    "embedding": lambda t, *e: torch.nn.functional.embedding(chosen(*e), t.view(10, 1)),
    "gather of a view": lambda t, *e: t.view(2, 5).t().gather(0, chosen(*e)[:, None].expand(-1, 2) % 5),
    "gather out=": lambda t, *e: torch.gather(t, 0, chosen(*e), out=torch.empty(0, dtype=torch.int32, device="mps")),
    "index_select out=": lambda t, *e: torch.index_select(
        t, 0, chosen(*e), out=torch.empty(0, dtype=torch.int32, device="mps")),
    "take out=": lambda t, *e: torch.take(t, chosen(*e), out=torch.empty(0, dtype=torch.int32, device="mps")),
}  # fmt: skip


@pytest.mark.parametrize("read", GATHERS.values(), ids=GATHERS)
def test_a_gather_reads_what_it_chooses(library, read):
    """Elements 7 to 9 were left unwritten: the rest may be chosen, none of them."""
    out, whole = holed(library), torch.arange(10, dtype=torch.int32, device="mps")
    assert torch.equal(read(out, 1, 0), read(whole, 1, 0))
    with pytest.raises(RuntimeError, match=r"reads element [1-9]+ of a tensor.*leaves_a_hole.*left unwritten"):
        read(out, 1, 8)
    assert torch.equal(read(holed(library, hole=10), 1, 8), read(whole, 1, 8))


def test_a_gather_names_the_element(library):
    with pytest.raises(RuntimeError, match=r"aten::gather reads element 8 of a tensor of shape \[10\]"):
        holed(library).gather(0, chosen(8, 7, 0))
    with pytest.raises(RuntimeError, match=r"aten::index_select reads element 1 of a tensor of shape \[2\]"):
        holed(library)[6:8].index_select(0, chosen(1))
    with pytest.raises(IndexError):
        holed(library)[chosen(10)]


def test_indices_that_were_left_unwritten(library):
    with pytest.raises(RuntimeError, match="leaves_a_hole"):
        torch.arange(10, device="mps").take(holed(library).long())
    with pytest.raises(RuntimeError, match="leaves_a_hole"):
        torch.arange(10, device="mps")[holed(library)]


def test_fresh_memory_that_no_kernel_saw_may_be_read(library):
    torch.empty(10, device="mps").sum()
    holed(library)  # something is tracked now
    torch.empty(10, device="mps").sum()


def test_what_ops_wrote_a_kernel_may_read(library):
    out = torch.empty(4, dtype=torch.int32, device="mps")
    for x in (
        torch.arange(4, dtype=torch.int32, device="mps"),
        torch.arange(4, dtype=torch.int32).to("mps"),
        torch.arange(8, dtype=torch.int32, device="mps")[::2].contiguous() // 2,
        torch.empty(4, dtype=torch.int32, device="mps").copy_(torch.arange(4)),
    ):
        library.adds(x, out)
        assert out.tolist() == [1, 2, 3, 4]


def test_freed_memory_starts_fresh(library):
    torch.ones(10, dtype=torch.int32, device="mps")  # its block may be used again
    with pytest.raises(RuntimeError, match="left unwritten"):
        holed(library).sum()
