"""The pack's own command line on the software Metal device: what a user of a Mac runs, on a machine without one.

    python -m softmetal [--faults 2.13] [--chip NAME] [--macos VERSION] status | selftest | bench [--json]

Run it with PYTHONPATH=tests, or by `make selftest`. On a Mac it runs on the GPU, and the profile does not count.
Exit status: that of `python -m metal_kernels`.
"""
import argparse
import sys
from importlib import import_module

from pack import load

from . import activate

COMMANDS = ("status", "selftest", "bench")


def main(arguments: list[str] | None = None) -> int:
    """Activate a profile, then hand the command over to the library in this checkout."""
    parser = argparse.ArgumentParser(prog="python -m softmetal", description=__doc__.splitlines()[0])
    parser.add_argument("--faults", default="2.13", metavar="VERSION",
                        help='whose stock: 2.9, 2.12, 2.13 (default), 2.14, 2.15, or "none" for one without faults')
    parser.add_argument("--chip", default="Apple M2 Max", help='as Metal names it (default: "Apple M2 Max")')
    parser.add_argument("--macos", default="15.5", help="product version (default: 15.5)")
    parser.add_argument("command", choices=COMMANDS, help="as in `python -m metal_kernels`; bench takes very long here")
    parser.add_argument("--json", action="store_true", help="print JSON")
    options = parser.parse_args(arguments)
    if sys.platform != "darwin":
        try:
            activate(None if options.faults == "none" else options.faults, options.chip, options.macos)
        except ValueError as error:
            parser.error(str(error))
    command_line = import_module(f"{load().metal_kernels.__name__}.__main__")
    return command_line.main([options.command, *(["--json"] if options.json else [])])


if __name__ == "__main__":
    sys.exit(main())
