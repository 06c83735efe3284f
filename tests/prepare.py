"""Compile the software Metal device before the suite, so that no test's time limit counts it. Does nothing on a Mac."""
import sys

from demo.progress import waiting

if sys.platform != "darwin":
    with waiting("Compiling the software Metal device (once)"):
        import softmetal

        softmetal.activate()
