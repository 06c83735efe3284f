"""Which of the pack's kernels took part in something: the difference of their counters before and after."""
from .. import library


def snapshot():
    """{kernel: (calls taken, calls passed to stock)}; empty where the library can't be used."""
    if library.metal_kernels is None:
        return {}
    return {
        name: (_total(kernel, "taken"), _total(kernel, "passed"))
        for name, kernel in library.metal_kernels.status()["kernels"].items()
    }


def since(before):
    """{kernel: {"taken": n, "passed": n}} of the kernels whose ops were called since `snapshot`."""
    used = {}
    for name, (taken, passed) in snapshot().items():
        taken_before, passed_before = before.get(name, (0, 0))
        if taken > taken_before or passed > passed_before:
            used[name] = {"taken": taken - taken_before, "passed": passed - passed_before}
    return used


def describe(used):
    """One line."""
    if not used:
        return "none of the pack's kernels took part"
    return "; ".join(f"{name}: {n['taken']:,} calls taken, {n['passed']:,} left to stock" for name, n in used.items())


def _total(kernel, what):
    return sum(counts[what] for counts in kernel["ops"].values())
