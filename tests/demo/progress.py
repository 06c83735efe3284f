"""A bar on stderr for everything that takes longer than a moment."""
import sys

from tqdm import tqdm


def bar(title, total, unit="pad"):
    """A tqdm bar of `total` steps; on a terminal redrawn as it goes, in a log written once in two seconds."""
    return tqdm(
        total=total,
        desc=f"{title:<22}",
        unit=unit,
        file=sys.stderr,
        leave=True,
        mininterval=0.1 if sys.stderr.isatty() else 2.0,
        dynamic_ncols=True,
        bar_format="{desc}{percentage:3.0f}% |{bar:28}| {n_fmt}/{total_fmt} {unit}s  {elapsed}",
    )
