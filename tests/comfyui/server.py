"""A real, unmodified ComfyUI on the software mps device (on a Mac: on the GPU), this pack among its custom nodes."""
import contextlib
import json
import os
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
PACK = "metal-kernels"


class ComfyUI:
    """A running server. `folder` is its base directory; `log` what it printed so far."""

    def __init__(self, process, port, folder, log):
        self._process, self._port, self.folder, self._log = process, port, folder, log

    @property
    def log(self):
        return self._log.read_text(errors="replace")

    def get(self, path):
        """The JSON of GET `path`."""
        with urllib.request.urlopen(f"http://127.0.0.1:{self._port}{path}", timeout=30) as answer:
            return json.load(answer)

    def text(self, path):
        """The body of GET `path` as text."""
        with urllib.request.urlopen(f"http://127.0.0.1:{self._port}{path}", timeout=30) as answer:
            return answer.read().decode()

    def post(self, path, body):
        """The JSON of POST `path` with a JSON body."""
        request = urllib.request.Request(f"http://127.0.0.1:{self._port}{path}", json.dumps(body).encode(),
                                         {"Content-Type": "application/json"})
        with urllib.request.urlopen(request, timeout=30) as answer:
            return json.load(answer)

    def run(self, graph, seconds=120):
        """Queue `graph` (API format) and wait; the prompt's entry of /history. Raises AssertionError when it fails."""
        prompt = self.post("/prompt", {"prompt": graph})["prompt_id"]
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            entry = self.get(f"/history/{prompt}").get(prompt)
            if entry and entry["status"]["completed"]:
                return entry
            assert not entry or entry["status"]["status_str"] != "error", entry["status"]["messages"]
            time.sleep(0.1)
        raise AssertionError(f"the prompt was not done after {seconds} s\n{self.log[-4000:]}")

    def wait(self, seconds):
        """Return when it answers. Raises AssertionError with its log when it stopped or took longer."""
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            assert self._process.poll() is None, f"ComfyUI stopped\n{self.log[-4000:]}"
            with contextlib.suppress(urllib.error.URLError, ConnectionError, TimeoutError):
                self.get("/system_stats")
                return
            time.sleep(0.25)
        raise AssertionError(f"ComfyUI did not answer within {seconds} s\n{self.log[-4000:]}")


@contextlib.contextmanager
def running(comfyui, faults="2.13", environment=None, seconds=120):
    """A `ComfyUI` from the checkout at `comfyui`, ended when the block ends."""
    with tempfile.TemporaryDirectory() as folder:
        nodes = Path(folder, "custom_nodes")
        nodes.mkdir()
        (nodes / PACK).symlink_to(ROOT, target_is_directory=True)
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        log = Path(folder, "log.txt")
        command = [sys.executable, str(HERE / "start.py"), str(comfyui), faults, "--listen", "127.0.0.1",
                   "--port", str(port), "--base-directory", folder, "--disable-all-custom-nodes",
                   "--whitelist-custom-nodes", PACK, "--disable-api-nodes", "--database-url", "sqlite:///:memory:"]
        with log.open("w") as out:
            process = subprocess.Popen(command, stdout=out, stderr=subprocess.STDOUT,
                                       env={**os.environ, "HF_HUB_OFFLINE": "1", **(environment or {})})
        try:
            server = ComfyUI(process, port, Path(folder), log)
            server.wait(seconds)
            yield server
        finally:
            process.terminate()
            try:
                process.wait(20)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
