"""A bar on stderr for everything that takes longer than a moment."""
import contextlib
import sys
import threading
import time

from tqdm import tqdm


class _Lines:
    """stderr where nothing is drawn over: each state of a bar on a line of its own."""

    def write(self, text):
        text = text.strip()
        if text:
            print(text, file=sys.stderr)

    def flush(self):
        sys.stderr.flush()


def bar(title, total, unit="pad"):
    """A tqdm bar of `total` steps; on a terminal redrawn as it goes, in a log written once in two seconds."""
    return tqdm(
        total=total,
        desc=f"{title:<22}",
        unit=unit,
        file=sys.stderr if sys.stderr.isatty() else _Lines(),
        leave=True,
        mininterval=0.1 if sys.stderr.isatty() else 2.0,
        dynamic_ncols=True,
        bar_format="{desc}{percentage:3.0f}% |{bar:28}| {n_fmt}/{total_fmt} {unit}s  {elapsed}",
    )


def _counted(progress):
    if progress is None:
        return ""
    done, total, what = progress()
    return f"|{'#' * (20 * done // total):<20}| {done} of {total} {what}  "


@contextlib.contextmanager
def waiting(title, patience=2.0, progress=None):
    """Say on stderr what is being waited for, and for how long, once it has taken longer than `patience` seconds.

    progress: returns (done, in all, "files") where that can be counted; a bar of them is shown then.
    """
    done, start = threading.Event(), time.perf_counter()
    live = sys.stderr.isatty()

    def show():
        if done.wait(patience):
            return
        while True:
            text = f"{title:<22}{_counted(progress)}{time.perf_counter() - start:4.0f} s"
            print(f"\r{text}" if live else text, end="" if live else "\n", file=sys.stderr, flush=True)
            if done.wait(1.0 if live else 15.0):
                break
        if live:
            print(file=sys.stderr)

    thread = threading.Thread(target=show, name="progress", daemon=True)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()
