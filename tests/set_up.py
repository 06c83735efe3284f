"""Install pinned requirements into a venv, with a line of progress: python set_up.py VENV_PYTHON [pip arguments].

Only Python's own library, since it runs before anything is installed. pip's output is shown whole when it fails.
"""
import re
import subprocess
import sys
import time
from pathlib import Path

STEPS = re.compile(r"^\s*(Collecting|Downloading|Using cached|Building wheels?|Installing collected packages)(.*)")


def install(python, arguments):
    """Run `pip install` with `arguments`; pip's exit status."""
    command = [python, "-m", "pip", "install", "--disable-pip-version-check", "--no-input", "--progress-bar", "off"]
    process = subprocess.Popen([*command, *arguments], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    output, start, last = [], time.monotonic(), 0.0
    live = sys.stderr.isatty()
    for line in process.stdout:
        output.append(line)
        step = STEPS.match(line)
        now = time.monotonic()
        # On a terminal the line is drawn over; in a log, one line in ten seconds is enough.
        if step and (live or now - last > 10):
            last = now
            name = step[2].strip().split(" ")[0]
            what = "installing" if step[1].startswith("Installing") else f"{step[1].lower()} {Path(name).name}"
            text = f"  {now - start:4.0f} s  {what}"
            print(f"\r{text[:78]:<78}" if live else text, end="" if live else "\n", file=sys.stderr, flush=True)
    status = process.wait()
    if live:
        print("\r" + " " * 78 + "\r", end="", file=sys.stderr)
    if status:
        sys.stderr.writelines(output)
    else:
        print(f"  {time.monotonic() - start:4.0f} s  done", file=sys.stderr)
    return status


if __name__ == "__main__":
    sys.exit(install(sys.argv[1], sys.argv[2:]))
