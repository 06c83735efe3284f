"""Stock's constant pad: each fault shows in its profiles and with its switch, and nowhere else."""
import pytest
import softmetal
import torch
import torch.nn.functional as F
from softmetal.faults import FAULTS, VERSIONS

MIB = 1 << 20
FAULTY = ["2.9", "2.12", "2.13", "2.14"]
CLEAN = [None, "2.15", {"fp8-undefined"}]


def random(*shape, dtype=torch.float32):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(0)).to(dtype)


def stock(x, pad, value=0.0):
    return F.pad(x.to("mps"), pad, value=value).cpu()


@pytest.mark.parametrize("profile", [*FAULTY, {"pad-inner-extent"}], ids=str)
def test_fill_overwrites_the_data(profile):
    """Report 1: four of the six frames lose everything."""
    softmetal.activate(profile)
    x = random(1, 1, 4, 256, 256)
    y = stock(x, (0, 0, 0, 0, 2, 0))
    assert y.shape == (1, 1, 6, 256, 256)
    assert torch.equal(y, torch.zeros_like(y))
    y = stock(x, (0, 0, 0, 0, 2, 0), 3.0)
    assert bool((y == 3).all())


@pytest.mark.parametrize("profile", FAULTY)
def test_bfloat16_turns_into_nan(profile):
    """Report 2. The padded part keeps the fill value."""
    softmetal.activate(profile)
    y = stock(random(1, 8, 1, 256, 384, dtype=torch.bfloat16), (0, 0, 0, 0, 2, 0))
    assert y[:, :, 2:].isnan().all() and not y[:, :, :2].any()


@pytest.mark.parametrize("profile", CLEAN, ids=str)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_absent_elsewhere(profile, dtype):
    softmetal.activate(profile)
    x = random(1, 1, 4, 256, 256, dtype=dtype)
    assert torch.equal(stock(x, (0, 0, 0, 0, 2, 0)), F.pad(x, (0, 0, 0, 0, 2, 0)))


@pytest.mark.parametrize(("shape", "pad", "faulty"), [
    ((1, 1, 4, 64, 1023), (0, 0, 0, 0, 2, 0), False), ((1, 1, 4, 64, 1024), (0, 0, 0, 0, 2, 0), True),
    ((1, 1, 4, 254, 256), (0, 0, 1, 1, 2, 0), True), ((1, 1, 4, 254, 256), (0, 0, 0, 0, 2, 0), False),
    ((1, 1, 2, 256, 256), (0, 0, 1, 1), False),  # only 256 elements behind the padded dimension
    ((1, 1, 1, 2, 65535), (1, 0), True), ((1, 1, 1, 2, 65534), (1, 0), False),  # the last dimension itself
    ((1, 4, 256, 256), (0, 0, 0, 0, 2, 0), False), ((1, 1, 1, 2, 256, 256), (0, 0, 0, 0, 2, 0), True),
    ((1, 1, 4, 256, 256), (0, 0, 0, 0, 0, 0), False)])
def test_the_threshold(shape, pad, faulty):
    softmetal.activate("2.13")
    x = random(*shape)
    assert torch.equal(stock(x, pad, 9.0), F.pad(x, pad, value=9.0)) != faulty


@pytest.mark.parametrize("profile", [*FAULTY, {"pad-long-vector"}], ids=str)
def test_long_vectors(profile):
    softmetal.activate(profile)
    y = stock(torch.arange(2**17), (0, 1), 2)
    assert y.shape == (2**17 + 1,) and y[0] == 2 and not y[1:].any()
    x = torch.arange(2**15)
    assert torch.equal(stock(x, (0, 1), 2), F.pad(x, (0, 1), value=2))


@pytest.mark.parametrize("profile", CLEAN, ids=str)
def test_long_vectors_are_right_elsewhere(profile):
    softmetal.activate(profile)
    x = torch.arange(2**17)
    assert torch.equal(stock(x, (0, 1), 2), F.pad(x, (0, 1), value=2))


@pytest.mark.parametrize("profile", [*FAULTY, {"pad-empty-list"}], ids=str)
def test_an_empty_list_raises(profile):
    softmetal.activate(profile)
    with pytest.raises(RuntimeError, match="invalid padding argument of size 0"):
        torch.constant_pad_nd(torch.ones(2, 3, device="mps"), [])


@pytest.mark.parametrize("profile", CLEAN, ids=str)
def test_an_empty_list_copies_elsewhere(profile):
    softmetal.activate(profile)
    assert torch.equal(torch.constant_pad_nd(torch.ones(2, 3, device="mps"), []).cpu(), torch.ones(2, 3))


@pytest.mark.parametrize("profile", [*FAULTY, {"pad-keeps-memory"}], ids=str)
def test_each_distinct_pad_keeps_driver_memory(profile):
    softmetal.activate(profile)

    def outside():
        return softmetal.counters.memory()["outside"]

    start = outside()
    x = torch.ones(MIB, dtype=torch.uint8, device="mps").view(1, -1)
    F.pad(x, (MIB, 0))
    first = outside() - start
    assert first == 3 * MIB  # what the input and the output take
    for _ in range(3):
        F.pad(x, (MIB, 0))
    assert outside() - start == first
    F.pad(x, (0, MIB))                   # other padding
    F.pad(x.view(2, -1), (MIB, 0))       # other shape
    F.pad(x.view(torch.int8), (MIB, 0))  # other type
    assert outside() - start == 3 * first + 4 * MIB
    torch.mps.empty_cache()
    assert outside() - start == 3 * first + 4 * MIB
    assert softmetal.counters.memory_peaks()["outside"] == outside()
    assert torch.mps.driver_allocated_memory() >= outside()


@pytest.mark.parametrize("profile", CLEAN, ids=str)
def test_no_memory_is_kept_elsewhere(profile):
    softmetal.activate(profile)
    before = softmetal.counters.memory()["outside"]
    F.pad(torch.ones(1000, device="mps"), (1, 1))
    assert softmetal.counters.memory()["outside"] == before


def test_the_backward_of_a_pad_is_right_on_stock():
    """It crops, and a crop of a small tensor meets no fault."""
    softmetal.activate("2.13")
    x = torch.ones(2, 3, device="mps", requires_grad=True)
    F.pad(x, (1, 2)).sum().backward()
    assert torch.equal(x.grad.cpu(), torch.ones(2, 3))


def test_wrong_pads_raise_the_cpu_error():
    softmetal.activate("2.13")
    for x, pad in ((torch.ones(2, 3), (1,)), (torch.ones(3), (1, 1, 1, 1)), (torch.ones(2, 3), (-2, -2))):
        with pytest.raises(RuntimeError) as expected:
            torch.constant_pad_nd(x, pad)
        with pytest.raises(RuntimeError) as actual:
            torch.constant_pad_nd(x.to("mps"), pad)
        assert str(actual.value) == str(expected.value)


def test_every_fault_says_what_it_is():
    for name, fault in FAULTS.items():
        assert fault.id == name and fault.title and fault.source
        assert fault.versions and fault.versions <= set(VERSIONS)
        assert fault.switch or fault.lacks
