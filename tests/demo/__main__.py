"""`python -m demo`: decode on the CPU, on stock MPS and on repaired MPS, and compare.

Prints a table, writes out/demo/, and exits with a status other than 0 when a check fails.
"""
import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]

# What each phase sets for the pack: the same switch that a user has when ComfyUI itself won't start.
SWITCH = {"cpu": None, "stock": "pad=off", "repaired": "pad=auto"}


def run_phase(phase, folder, total_pads):
    """What `demo.phase` wrote: (result dict, picture tensor). Raises SystemExit when that process failed."""
    import torch

    path = os.pathsep.join(filter(None, [str(ROOT / "tests"), os.environ.get("PYTHONPATH")]))
    environment = dict(os.environ, PYTHONPATH=path, HF_HUB_OFFLINE="1", PYTHONWARNINGS="ignore")
    environment.pop("METAL_KERNELS", None)
    if SWITCH[phase]:
        environment["METAL_KERNELS"] = SWITCH[phase]
    process = subprocess.run([sys.executable, "-m", "demo.phase", phase, folder, str(total_pads)], env=environment)
    if process.returncode:
        raise SystemExit(f"error: the {phase} decode stopped with status {process.returncode}; see above")
    result = json.loads(Path(folder, f"{phase}.json").read_text())
    return result, torch.load(Path(folder, f"{phase}.pt"), weights_only=True)


def main(arguments=None):
    """The exit status: 0 when every check held."""
    parser = argparse.ArgumentParser(prog="demo", description=__doc__)
    parser.add_argument("--out", type=Path, default=ROOT / "out" / "demo", help="where report.json and report.png go")
    out = parser.parse_args(arguments).out

    from . import compare, picture, report

    results, pictures = {}, {}
    with tempfile.TemporaryDirectory() as folder:
        for phase in SWITCH:
            results[phase], pictures[phase] = run_phase(phase, folder, compare.PADS)
    for phase in ("stock", "repaired"):
        results[phase]["psnr_db"] = compare.psnr(pictures[phase], pictures["cpu"])
    software = results["repaired"]["device"]["kind"] == "software Metal"
    checks = compare.checks(results["cpu"], results["stock"], results["repaired"], software)

    out.mkdir(parents=True, exist_ok=True)
    (out / "report.json").write_text(report.as_json(results, checks))
    picture.draw(results, pictures).save(out / "report.png", optimize=True)
    print(report.as_text(results, checks))
    print(f"\nwritten: {_short(out / 'report.png')}, {_short(out / 'report.json')}")
    return 0 if all(check.passed for check in checks) else 1


def _short(path):
    path = path.resolve()
    return path.relative_to(ROOT) if path.is_relative_to(ROOT) else path


if __name__ == "__main__":
    sys.exit(main())
