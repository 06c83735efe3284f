"""The kernel library as the meter sees it: how many calls its kernels took and left to stock, and which could help."""
from contextlib import ExitStack

from .. import library

STOPS_GROWTH = ("pad",)  # kernels whose stock op keeps Metal memory outside torch's pool, for every new shape


def snapshot():
    """{kernel: (calls taken, calls passed to stock)} so far; {} where the library can't be used.

    Passed ones are told of STOPS_GROWTH alone: several kernels may wait for one op, each for dtypes or shapes of its
    own, and a call that none of them was meant for is no sign of anything.
    """
    if library.metal_kernels is None:
        return {}
    taken, passed = library.metal_kernels.taken(), library.metal_kernels.passed()
    return {name: (taken.get(name, 0), passed[name] if name in STOPS_GROWTH else 0) for name in passed}


def since(before):
    """{kernel: (taken, passed)} of the kernels whose ops were called since `before`."""
    found = {}
    for name, counts in snapshot().items():
        new = tuple(max(0, now - then) for now, then in zip(counts, before.get(name, (0, 0)), strict=True))
        if any(new):
            found[name] = new
    return found


def leaking():
    """Kernels that stop a growth which stock shows on this torch: {name: stock's fault in words}."""
    if library.metal_kernels is None:
        return {}
    environment = library.metal_kernels.environment.detect()
    found = {name: environment.stock(name) for name in STOPS_GROWTH if environment.obstacle is None}
    return {name: stock.text for name, stock in found.items() if stock.good is not True}


def state(name):
    """(state, reason) of a kernel, as its status gives them."""
    kernel = library.metal_kernels.status()["kernels"][name]
    return kernel["state"], kernel["reason"]


def watched(watcher, pauser):
    """Context manager: `watcher()` at every call of the patched ops, `pauser(True)` and `pauser(False)` round their
    self-checks; and calls of the leaking ops are counted though their kernels are switched off."""
    stack = ExitStack()
    if library.metal_kernels is not None:
        known = {kernel.name for kernel in library.metal_kernels.KERNELS}
        stack.enter_context(library.metal_kernels.registered(*sorted(known & set(leaking()))))
        stack.enter_context(library.metal_kernels.watch(watcher, pauser))
    return stack
