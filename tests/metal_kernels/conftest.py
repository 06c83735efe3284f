"""The core under test, and kernels made for a test."""

import importlib
import types

import pytest
import torch

MODULES = (
    "environment", "installation", "kernel", "override", "patcher", "report", "results", "selfcheck", "shader",
    "switches", "waits",
)  # fmt: skip


@pytest.fixture(scope="session")
def core():
    """The library's modules by name, as loaded inside the pack: `core.kernel`; `core.face` is the package itself."""
    from pack import load

    face = load().metal_kernels
    return types.SimpleNamespace(
        face=face, **{name: importlib.import_module(f"{face.__name__}.{name}") for name in MODULES}
    )


@pytest.fixture
def make_kernel(core):
    """make_kernel(op, run, ...): a Kernel with one Patch, needed everywhere and with a self-check that agrees."""

    def make(op="constant_pad_nd", run=None, *, supports=None, name=None, need=True, selfcheck=None, **patch):
        patch = core.kernel.Patch(
            op, supports or (lambda *a, **k: True), run or marking(op), **patch
        )
        return core.kernel.Kernel(
            name=name or op.replace(".", "_"),
            title=op,
            patches=(patch,),
            need=lambda environment: core.kernel.Need(need, "needed by a test" if need else "stock is good here"),
            selfcheck=selfcheck or (lambda dtype: None),
            repairs="Nothing: it belongs to a test.",
            dtypes=(torch.float32, torch.float16),
        )

    return make


MARK = 42.0


def marking(op):
    """A patch of `op` whose results have the right form, and values that no stock kernel gives."""

    def run(x, *args, **kwargs):
        form = getattr(torch.ops.aten, op)(x.to("meta"), *args, **kwargs)
        return torch.full(form.shape, MARK, dtype=form.dtype, device=x.device)

    return run


def is_marked(tensor):
    return tensor.numel() > 0 and bool((tensor.detach().cpu().float() == MARK).all())


@pytest.fixture
def took():
    """Whether a result came from a test's kernel."""
    return is_marked


@pytest.fixture
def here(core, mps):
    """The Environment of this process, with the device there."""
    return core.environment.detect()


@pytest.fixture
def install(core, mps):
    """install(*kernels, key="MPS"): an Installation, installed, and undone at the test's end."""
    made = []
    core.face.uninstall()

    def build(*kernels, key="MPS", environment=None):
        installation = core.installation.Installation(kernels, key, environment)
        made.append(installation)
        installation.install()
        return installation

    yield build
    for installation in reversed(made):
        installation.uninstall()


@pytest.fixture
def launches():
    """The launches of Metal kernels that a test makes, recorded by the software device."""
    from softmetal import shader

    with shader.launches.record() as records:
        yield records


@pytest.fixture
def faultless_stock():
    """Beneath our kernels a stock that does what the CPU does: what it raises is then the CPU's error."""
    import softmetal

    with softmetal.profile(faults=None):
        yield
