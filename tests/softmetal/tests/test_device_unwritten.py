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
