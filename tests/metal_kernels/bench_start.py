"""What the benchmarks here begin with when they are run as programs."""

import argparse
import sys
from pathlib import Path

TESTS = Path(__file__).resolve().parents[1]


def start(doc, **profile):
    """(options, one of them `json`; the library as the pack has it). `profile`: the device's, as for activate()."""
    parser = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    sys.path.insert(0, str(TESTS))
    if sys.platform != "darwin":
        import softmetal
        import torch  # noqa: F401  (softmetal's libraries link against it)

        softmetal.activate(**profile)
    from pack import load

    return options, load().metal_kernels
