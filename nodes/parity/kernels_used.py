"""Which of the pack's kernels took part in something: the difference of their counters before and after."""
from .. import library


def snapshot():
    """{kernel: (calls taken, calls passed to stock)}; empty where the library can't be used.

    Kernels may share an op: a taken call counts for the one that ran it, a passed one for the first that has the op.
    """
    if library.metal_kernels is None:
        return {}
    found, seen = {}, set()
    for name, kernel in library.metal_kernels.status()["kernels"].items():
        ops = kernel["ops"]
        taken = sum(counts.get("taken_by_kernel", {name: counts["taken"]}).get(name, 0) for counts in ops.values())
        passed = sum(counts["passed"] for op, counts in ops.items() if op not in seen)
        seen |= ops.keys()
        found[name] = taken, passed
    return found


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
    return "; ".join(f"{name}: {n['taken']:,} call{'' if n['taken'] == 1 else 's'} taken, {n['passed']:,} left to stock"
                     for name, n in used.items())
