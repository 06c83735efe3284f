"""Compile the software Metal device before the suite, so that no test's time limit counts it. Does nothing on a Mac."""
import sys

from demo.progress import waiting

if sys.platform != "darwin":
    with waiting("Loading torch"):
        import softmetal
        from softmetal.device import build

    with waiting("Compiling the device (once) ", progress=lambda: (*build.progress(), "C++ files")):
        softmetal.activate()
