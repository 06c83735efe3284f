"""Bytes for people."""

KIB, MIB, GIB = 2**10, 2**20, 2**30
NOT_AVAILABLE = "not available"


def size(count, sign=False):
    """"262.07 GiB", "54.9 MiB", "0"; with `sign`, "+54.9 MiB". None: "not available"."""
    if count is None:
        return NOT_AVAILABLE
    if count == 0:
        return "0"
    mark = "-" if count < 0 else "+" if sign else ""
    count = abs(count)
    if count >= GIB:
        return f"{mark}{count / GIB:,.2f} GiB"
    if count >= MIB:
        return f"{mark}{count / MIB:.1f} MiB"
    return f"{mark}{max(0.1, count / KIB):.1f} KiB"


def duration(seconds):
    """"4 ms", "0.42 s", "12.3 s", "3 min 20 s"."""
    if seconds >= 120:
        return f"{int(seconds // 60)} min {int(seconds % 60)} s"
    if seconds < 0.1:
        return f"{seconds * 1000:.0f} ms"
    return f"{seconds:.2f} s" if seconds < 10 else f"{seconds:.1f} s"
