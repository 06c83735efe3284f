"""The grouped_mm kernels, installed on the software device with torch 2.13's stock beneath (on a Mac: on the GPU)."""

import importlib
import sys
import types

import pytest
import torch

EPS = 2.0**-24


class Grouped:
    """What the tests use: the modules, the mps twin of a CPU tensor, and the comparison with the CPU in float64."""

    def __init__(self, metal_kernels):
        self.metal_kernels = metal_kernels
        names = ("geometry", "host", "routing", "check", "bench")
        self.modules = types.SimpleNamespace(
            grouped_mm=metal_kernels.grouped_mm,
            **{n: importlib.import_module(f"{metal_kernels.__name__}.grouped_mm.{n}") for n in names},
        )
        self.dtypes = self.modules.host.DTYPES

    @property
    def taken(self) -> int:
        """Calls that our kernels ran since the module's tests began."""
        return self.metal_kernels.taken().get("grouped_mm", 0)

    @staticmethod
    def twin(x):
        """The same storage, sizes, strides and offset on mps."""
        if not isinstance(x, torch.Tensor):
            return x
        storage = torch.empty(0, dtype=torch.uint8).set_(x.untyped_storage())
        return storage.to("mps").view(x.dtype).as_strided(x.shape, x.stride(), x.storage_offset())

    @staticmethod
    def random(*sizes, dtype=torch.float32, seed: int = 0) -> torch.Tensor:
        return torch.randn(sizes, generator=torch.Generator().manual_seed(seed)).to(dtype)

    @staticmethod
    def ends(*values: int) -> torch.Tensor:
        return torch.tensor(values, dtype=torch.int32)

    def check(self, a, b, offs=None, what: object = "", form: str | None = None) -> torch.Tensor:
        """torch._grouped_mm of the mps twins, taken by our kernel; or with `form` compute(), whose form is forced."""
        what = (what, tuple(a.shape), a.stride(), tuple(b.shape), b.stride(), a.dtype)
        twins = [self.twin(t) for t in (a, b, offs)]
        if form is not None:
            y = self.modules.host.compute(*twins, form=form)
        else:
            before = self.taken
            y = torch._grouped_mm(twins[0], twins[1], offs=twins[2])
            assert self.taken == before + 1, ("went to stock", what)
        assert y.dtype == a.dtype, what
        assert_close(y, a, b, offs, what)
        return y


def spans(offs: torch.Tensor, size: int) -> list[tuple[int, int]]:
    """[begin, end) of each group as the kernels define it: ends within [0, size], none before an earlier one."""
    found, begin = [], 0
    for end in offs.tolist():
        end = max(begin, min(max(end, 0), size))
        found.append((begin, end))
        begin = end
    return found


def reference(a, b, offs=None) -> torch.Tensor:
    """In float64, group by group; zero past the last end."""
    a, b = a.detach().cpu().double(), b.detach().cpu().double()
    if offs is None:
        return a @ b
    if a.dim() == 2 and b.dim() == 2:
        if not len(offs):
            return a.new_zeros(0, a.shape[0], b.shape[1])
        return torch.stack([a[:, i:j] @ b[i:j] for i, j in spans(offs, a.shape[1])])
    y = torch.zeros(a.shape[-2], b.shape[-1], dtype=torch.float64)
    for group, (i, j) in enumerate(spans(offs, a.shape[0] if a.dim() == 2 else b.shape[1])):
        if a.dim() == 2:
            y[i:j] = a[i:j] @ b[group]
        else:
            y[:, i:j] = a[group] @ b[:, i:j]
    return y


def assert_close(actual, a, b, offs=None, what: object = "") -> None:
    """Half an ulp of the output's dtype, its one rounding, and what rounding in float on the way may add up to.

    That is 2^-24 of the sum of the products' magnitudes for each rounding; of n of them most cancel, which leaves about
    sqrt(n), and a few. NaN and infinities are as expected.
    """
    expected = reference(a, b, offs)
    budget = (4 + a.shape[-1] ** 0.5 / 2) * EPS * reference(a.abs(), b.abs(), offs)
    actual = actual.detach().cpu()
    assert actual.shape == expected.shape, what
    got, rounded = actual.double(), expected.to(actual.dtype).double()
    special = ~rounded.isfinite()
    assert torch.equal(got.isnan(), rounded.isnan()), (what, "NaN")
    assert torch.equal(got[special].nan_to_num(nan=0.5), rounded[special].nan_to_num(nan=0.5)), (what, "infinity")
    finfo = torch.finfo(actual.dtype)
    larger = torch.maximum(got.abs(), expected.abs()).clamp(min=finfo.tiny)
    ulp = torch.exp2(larger.log2().floor()) * finfo.eps
    excess = ((got - expected).abs() / (0.5 * ulp + budget + torch.finfo(torch.float32).tiny))[~special]
    assert not excess.numel() or excess.max() <= 1.0001, (what, f"{excess.max():.2f} times the tolerance")


@pytest.fixture(scope="session")
def close():
    """assert_close()"""
    return assert_close


@pytest.fixture(scope="module")
def grouped():
    from pack import load

    metal_kernels = load().metal_kernels
    if sys.platform != "darwin":
        import softmetal

        softmetal.activate(faults="2.13")
    metal_kernels.uninstall()
    metal_kernels.install()
    metal_kernels.set_mode(grouped_mm="on")
    kernels = Grouped(metal_kernels)
    for dtype in (*kernels.dtypes, torch.int32, torch.int64):  # the first use of each is checked, which launches too
        x = torch.ones(16, 16).to("mps", dtype)
        torch.topk(x, 1) if dtype.is_floating_point else torch.histc(x, 1)
    metal_kernels.reset_counters()
    yield kernels
    assert metal_kernels.status()["kernels"]["grouped_mm"]["state"] != "failed"
    metal_kernels.set_mode(grouped_mm="auto")
    metal_kernels.uninstall()


@pytest.fixture
def launches(grouped):
    """The launches of grouped_mm.metal that a test makes, recorded by the software device."""
    from softmetal import shader

    with shader.launches.record() as records:
        yield records

