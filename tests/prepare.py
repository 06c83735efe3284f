"""Compile the software Metal device before the suite, so that no test's time limit counts it. Does nothing on a Mac.

--if-needed: not even load torch when all is compiled.
"""
import sys


def prepare(if_needed: bool) -> None:
    from demo.progress import waiting
    from softmetal.device import build

    if if_needed and build.is_built():
        return
    with waiting("Loading torch"):
        import softmetal
        import torch  # noqa: F401  (most of the time goes here)

    with waiting("Compiling the device (once) ", progress=lambda: (*build.progress(), "C++ files")):
        softmetal.activate()


if __name__ == "__main__" and sys.platform != "darwin":
    prepare("--if-needed" in sys.argv[1:])
