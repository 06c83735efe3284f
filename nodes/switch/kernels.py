"""What the switch needs of the kernel library, wherever that stands: missing, not installed, or nothing to patch."""
from contextlib import nullcontext

from .. import library


def names():
    """The kernels, in the library's order, which is the order of the node's inputs."""
    return tuple(kernel.name for kernel in getattr(library.metal_kernels, "KERNELS", ()))


def repairs():
    """kernel -> the sentence that says what it does."""
    return {kernel.name: kernel.repairs for kernel in getattr(library.metal_kernels, "KERNELS", ())}


def set_workflow(settings):
    """The process-wide layer that a node runs under; {} takes it away."""
    if library.metal_kernels is not None:
        library.metal_kernels.set_workflow(settings or None)


def hold(kernels):
    """Context manager: these kernels' ops stay registered with torch, so that a switch can switch them on."""
    return library.metal_kernels.registered(*sorted(kernels)) if kernels else nullcontext()


def registered():
    """The kernels whose ops are registered now; a prompt without switches can meet no other."""
    return library.metal_kernels.registered_now() if library.metal_kernels is not None else ()


def needed():
    """The kernels that `auto` patches here, whatever their modes are now."""
    return library.metal_kernels.needed() if library.metal_kernels is not None else ()


def modes():
    """kernel -> the mode of the whole process, which a node that no switch governs runs with."""
    return library.metal_kernels.modes() if library.metal_kernels is not None else {}


def taken():
    """kernel -> the calls it has run so far."""
    return library.metal_kernels.taken() if library.metal_kernels is not None else {}
