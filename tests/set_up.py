"""Install pinned requirements into a venv, with a line of progress: python set_up.py VENV_PYTHON [pip arguments].

Only Python's own library, since it runs before anything is installed. pip's output is shown whole when it fails.
"""
import os
import re
import subprocess
import sys
import threading
import time
from pathlib import Path

STEPS = re.compile(r"^\s*(Collecting|Downloading|Using cached|Building wheels?|Installing collected packages:)(.*)")
WIDTH = 78


class Progress:
    """One line on stderr while pip works: on a terminal drawn over each second, in a log written once in ten.

    pip itself says nothing while it unpacks, which is most of the time: the packages that are there are counted.
    """

    def __init__(self, packages):
        self.packages = packages  # the folder that pip unpacks into
        self.step, self.wanted = "starting pip", []
        self.live = sys.stderr.isatty()
        self.start, self.done = time.monotonic(), threading.Event()
        self.thread = threading.Thread(target=self._show, name="progress", daemon=True)

    def __enter__(self):
        self.thread.start()
        return self

    def __exit__(self, *_):
        self.done.set()
        self.thread.join()
        if self.live:
            print("\r" + " " * WIDTH + "\r", end="", file=sys.stderr)

    def read(self, line):
        """A line of pip's output."""
        if not (step := STEPS.match(line)):
            return
        what, rest = step[1], step[2].strip()
        if what.startswith("Installing"):
            self.wanted = [distribution(name) for name in rest.split(", ")]
        else:
            name, _, size = rest.partition(" ")
            size = f" {size}" if re.fullmatch(r"\([\d.]+ [kMG]B\)", size) else ""
            self.step = f"{what.lower()} {Path(name).name}{size}"

    def text(self):
        """What pip is at, with the seconds so far."""
        step = self.step
        if self.wanted:
            there = self._there()
            step = f"installing packages: {sum(name in there for name in self.wanted)} of {len(self.wanted)}"
        return f"  {time.monotonic() - self.start:4.0f} s  {step}"

    def _there(self):
        try:
            folders = os.listdir(self.packages)
        except OSError:
            return set()
        return {distribution(folder.split("-")[0]) for folder in folders if folder.endswith(".dist-info")}

    def _show(self):
        while not self.done.wait(1 if self.live else 10):
            text = self.text()
            print(f"\r{text[:WIDTH]:<{WIDTH}}" if self.live else text, end="" if self.live else "\n",
                  file=sys.stderr, flush=True)


def distribution(name):
    """A package's name as its folder in site-packages has it, in lower case."""
    return re.sub(r"[-_.]+", "_", name.strip()).lower()


def install(python, arguments):
    """Run `pip install` with `arguments`; pip's exit status."""
    where = subprocess.run([python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"],
                           stdout=subprocess.PIPE, text=True, check=True).stdout.strip()
    command = [python, "-m", "pip", "install", "--disable-pip-version-check", "--no-input", "--progress-bar", "off"]
    process = subprocess.Popen([*command, *arguments], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                               env={**os.environ, "PYTHONUNBUFFERED": "1"})
    output = []
    with Progress(where) as progress:
        for line in process.stdout:
            output.append(line)
            progress.read(line)
        status = process.wait()
    if status:
        sys.stderr.writelines(output)
    else:
        print(f"  {time.monotonic() - progress.start:4.0f} s  done", file=sys.stderr)
    return status


if __name__ == "__main__":
    sys.exit(install(sys.argv[1], sys.argv[2:]))
