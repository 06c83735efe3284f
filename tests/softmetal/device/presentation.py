"""What torch and platform show of the machine while the device is active, and how to take it back."""
import importlib
import platform
from collections.abc import Callable

from .chips import Chip

_MISSING = object()
_STATISTICS = tuple("_accelerator_" + name for name in (
    "isAllocatorInitialized", "emptyCache", "getDeviceStats", "resetAccumulatedStats", "resetPeakStats",
    "getMemoryInfo"))


class Presentation:
    """The attributes that make this process look like a Mac; `apply` sets them, `undo` restores each.

    machine: the chip. macos: product version. version: the torch version to present, None for the installed one.
    """

    def __init__(self, machine: Chip, macos: str, version: str | None):
        self.machine = machine
        self.macos = macos
        self.version = version
        self._saved: list[tuple[object, str, object]] = []
        self._stream_op = None

    def apply(self) -> None:
        """Shows the Mac."""
        import torch
        from torch.torch_version import TorchVersion

        from . import surface

        release = ("", "", "")
        self._set(platform, "mac_ver", lambda *_, **__: (self.macos, release, "arm64"))
        self._set(torch._C, "_has_mps", True)
        self._set(torch.UntypedStorage, "__new__", surface.new_storage)
        self._set(torch._C, "_mps_compileShader", surface.compile_shader)
        self._set(torch._C, "_mps_loadMetalllib", surface.load_metallib)  # three l are torch's own
        self._set(torch._C, "_mps_loadMetallibFromPath", surface.load_metallib)
        self._set(torch._C, "_mps_host_alias_storage", surface.host_alias_storage)
        capture = surface.Capture()
        self._set(torch._C, "_mps_isCaptureEnabled", capture.enabled)
        self._set(torch._C, "_mps_isCapturing", lambda: capture.capturing)
        self._set(torch._C, "_mps_startCapture", capture.start)
        self._set(torch._C, "_mps_stopCapture", capture.stop)
        self._set(torch._C, "_mps_get_name", lambda: self.machine.name)
        self._set(torch._C, "_mps_get_core_count", lambda: self.machine.gpu_cores)
        if self.version is not None:
            shown = TorchVersion(self.version)
            if str(shown) != str(torch.__version__).partition("+")[0]:
                self._set(torch.version, "git_version", "imitated")  # the commit beneath is another release's
            self._set(torch, "__version__", shown)
            self._set(torch.version, "__version__", str(shown))
        if hasattr(torch.mps, "Stream"):
            self._show_streams()
        self._hide(TorchVersion(torch.__version__))
        _forget_answers()

    def undo(self) -> None:
        """Restores everything `apply` set, newest first."""
        if self._stream_op is not None:
            self._stream_op._destroy()
            self._stream_op = None
        while self._saved:
            owner, name, value = self._saved.pop()
            if value is _MISSING:
                delattr(owner, name)
            else:
                setattr(owner, name, value)
        _forget_answers()

    def _show_streams(self) -> None:
        import torch
        import torch.mps.streams

        from . import streams

        self._set(torch.mps, "Stream", streams.Stream)
        self._set(torch.mps.streams, "Stream", streams.Stream)
        self._set(torch._C, "_mps_getCurrentStream", streams.get_current_stream)
        self._set(torch._C, "_mps_setStream", streams.set_stream)

    def _hide(self, version) -> None:
        """Takes away what that TorchVersion did not have."""
        import torch
        import torch.nn.functional

        from softmetal import shader

        self._set(shader.settings, "error_buffer", version >= (2, 11))
        if version < (2, 10):
            for name in ("scaled_mm", "grouped_mm", "scaled_grouped_mm"):
                self._remove(torch.nn.functional, name)
        if version >= (2, 15):
            self._stream_op = torch.library.Library("aten", "IMPL", "MPS")
            self._stream_op.impl("record_stream", lambda tensor, stream: None)  # memory is never reused too early here
        else:
            for name in ("Stream", "stream", "set_stream"):  # current_stream stays: torch's own Event asks for it
                self._remove(torch.mps, name)
        if version < (2, 13):  # the MPS allocator kept no statistics
            for name in _STATISTICS:
                if hasattr(torch._C, name):
                    self._set(torch._C, name, _no_statistics)

    def _set(self, owner: object, name: str, value: object) -> None:
        self._saved.append((owner, name, owner.__dict__.get(name, _MISSING)))
        setattr(owner, name, value)

    def _remove(self, owner: object, name: str) -> None:
        if name in owner.__dict__:
            self._saved.append((owner, name, owner.__dict__[name]))
            delattr(owner, name)


def pool_name(version: str | None) -> str:
    """What that torch (None: the installed one) calls the pool of its tensors when memory runs out.

    All tensors are in the shared pool since pytorch #175818: the private one is still in 2.9's MPSAllocator.h, and gone
    from 2.13's.
    """
    import torch
    from torch.torch_version import TorchVersion

    return "shared" if TorchVersion(version or torch.__version__) >= (2, 12) else "private"


_ARRIVALS = (((2, 10), "torch.nn.functional", ("scaled_mm", "grouped_mm")),
             ((2, 13), "torch._C", ("_mps_maxBufferLength",)),
             ((2, 15), "torch.mps", ("Stream", "stream", "set_stream")))
"""Version, module, names: what a newer torch has of the things that the device presents."""


def missing_functions(version: str | None) -> tuple[str, ...]:
    """What torch `version` has and the installed one lacks, a sentence each; nothing for None."""
    import torch
    from torch.torch_version import TorchVersion

    if version is None:
        return ()
    return tuple(
        f"torch {torch.__version__} has no {module}.{name}, which came with {since[0]}.{since[1]}"
        for since, module, names in _ARRIVALS if TorchVersion(version) >= since
        for name in names if not hasattr(importlib.import_module(module), name))


def _no_statistics(*_args: object) -> None:
    raise RuntimeError("Allocator for mps is not a DeviceAllocator.")


def _forget_answers() -> None:
    """torch.backends.mps remembers its answers."""
    import torch

    for name in ("is_available", "is_macos_or_newer", "is_macos13_or_newer", "get_name", "get_core_count"):
        function: Callable | None = getattr(torch.backends.mps, name, None)
        if hasattr(function, "cache_clear"):
            function.cache_clear()
