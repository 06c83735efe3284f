"""python -m softmetal.frontend FILE.metal ... : compile, and print the kernels. Errors go to stderr; exit status 1.

--survey FOLDER ... -I ROOT [--build]: how much of somebody's Metal source the front end takes (survey.py).
"""

import argparse
import sys
from pathlib import Path

from . import CompileError, compile, survey


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m softmetal.frontend", description="Compile Metal source for the software device."
    )
    parser.add_argument("files", nargs="+", type=Path, metavar="FILE.metal")
    parser.add_argument("--fast", action="store_true", help="without memory checks")
    parser.add_argument("--survey", action="store_true", help="the files are folders: read each .metal file below them")
    parser.add_argument("-I", dest="roots", action="append", type=Path, default=[], metavar="ROOT",
                        help="where a surveyed file's includes are; may be repeated")  # fmt: skip
    parser.add_argument("--build", action="store_true", help="surveyed files are also compiled and loaded: of each "
                        "kernel template its first instantiation")  # fmt: skip
    parser.add_argument("--limit", type=float, default=600, metavar="SECONDS", help="for a surveyed file")
    parser.add_argument("--jobs", type=int, default=1, help="files that are surveyed at once")
    options = parser.parse_args(arguments)
    if options.survey:
        refused = survey.report(options.files, options.roots, options.build, options.limit, options.jobs)
        return int(refused > 0)
    failed = False
    for path in options.files:
        try:
            library = compile(path.read_bytes().decode("utf-8", errors="replace"), checked=not options.fast)
        except (CompileError, OSError) as error:
            print(f"{path}:\n{error}", file=sys.stderr)
            failed = True
            continue
        print(f"{path}: {len(library.kernels)} kernels, {library.path}")
        for kernel in library.kernels.values():
            arguments_text = ", ".join(f"{a.type} {a.name} [[buffer({a.index})]]" for a in kernel.arguments)
            print(f"  {kernel.name}({arguments_text})  threadgroup memory {kernel.threadgroup_bytes} bytes")
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
