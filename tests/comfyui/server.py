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
PACK, TEST_PACK = "metal-kernels", "metal-kernels-test-nodes"
OURS, TESTS_OWN = {PACK: ROOT}, {TEST_PACK: HERE / "test_nodes"}  # name among the custom nodes -> folder
# A server under test fetches nothing and installs nothing: some ComfyUI forks do at their start.
ALONE = {"HF_HUB_OFFLINE": "1", "PIP_NO_INDEX": "1"}


class ComfyUI:
    """A running server. `folder` is its base directory; `log` what it printed so far."""

    def __init__(self, process, port, folder, log):
        self._process, self.port, self.folder, self._log = process, port, folder, log

    @property
    def log(self):
        return self._log.read_text(errors="replace")

    def get(self, path):
        """The JSON of GET `path`."""
        return json.loads(self.text(path))

    def text(self, path):
        """The body of GET `path` as text."""
        with urllib.request.urlopen(f"http://127.0.0.1:{self.port}{path}", timeout=30) as answer:
            return answer.read().decode()

    def post(self, path, body):
        """The JSON of POST `path` with a JSON body; None for an empty answer. Raises `Refused` for a 400."""
        request = urllib.request.Request(f"http://127.0.0.1:{self.port}{path}", json.dumps(body).encode(),
                                         {"Content-Type": "application/json"})
        try:
            with urllib.request.urlopen(request, timeout=30) as answer:
                return json.loads(answer.read() or "null")
        except urllib.error.HTTPError as error:
            if error.code == 400:
                raise Refused(json.loads(error.read())) from None
            raise

    def run(self, graph, seconds=120):
        """Queue `graph` (API format) and wait; the prompt's entry of /history. Raises AssertionError when it fails."""
        entry = self.end(self.queue(graph), seconds)
        assert entry["status"]["status_str"] == "success", entry["status"]["messages"][-1]
        return entry

    def queue(self, graph, **more):
        """The prompt id of `graph` (API format), which is now in the queue. more: client_id, extra_data."""
        return self.post("/prompt", {"prompt": graph, **more})["prompt_id"]

    def end(self, prompt_id, seconds=120):
        """Wait for a prompt's end, however it ends; its entry of /history."""
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            assert self._process.poll() is None, f"ComfyUI stopped\n{self.log[-4000:]}"
            entry = self.get(f"/history/{prompt_id}").get(prompt_id)
            if entry:
                return entry
            time.sleep(0.05)
        raise AssertionError(f"the prompt was not done after {seconds} s\n{self.log[-4000:]}")

    def forget(self):
        """Drop the execution cache: the next prompt is a cold one. Returns when that has happened."""
        self.post("/free", {"free_memory": True})
        # The worker does it between two prompts, before or after this one: the next finds it done.
        self.run({"1": {"class_type": "TestShow", "inputs": {"value": f"cold {time.monotonic_ns()}"}}})

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


class Refused(Exception):
    """ComfyUI's validation refused a prompt; `args[0]` is its answer, with node_errors."""


def custom_nodes(base, packs):
    """Lay out the groups of custom nodes below `base`; the arguments that make ComfyUI load them, and no others."""
    folders = [base / "custom_nodes", *(base / f"custom_nodes_{number}" for number in range(1, len(packs)))]
    for folder, group in zip(folders, packs, strict=True):
        folder.mkdir()
        for name, target in group.items():
            (folder / name).symlink_to(target, target_is_directory=True)
    more = base / "more_custom_nodes.yaml"  # JSON is YAML
    more.write_text(json.dumps({"more": {"custom_nodes": "\n".join(map(str, folders[1:]))}} if folders[1:] else {}))
    return ["--extra-model-paths-config", str(more), "--disable-all-custom-nodes",
            "--whitelist-custom-nodes", *(name for group in packs for name in group)]


@contextlib.contextmanager
def running(comfyui, faults="2.13", environment=None, seconds=600, arguments=(), packs=(OURS | TESTS_OWN,)):
    """A `ComfyUI` from the checkout at `comfyui`, ended when the block ends. arguments: more of main.py's own.

    packs: the custom nodes, in groups that are loaded one after the other.
    It is given minutes: the first start compiles the software device.
    """
    with tempfile.TemporaryDirectory() as folder:
        arguments = [*custom_nodes(Path(folder), packs), *arguments]
        Path(folder, "input").mkdir()
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        log = Path(folder, "log.txt")
        command = [sys.executable, str(HERE / "start.py"), str(comfyui), faults, "--listen", "127.0.0.1",
                   "--port", str(port), "--base-directory", folder, "--disable-api-nodes",
                   "--database-url", "sqlite:///:memory:", *arguments]
        with log.open("w") as out:
            process = subprocess.Popen(command, stdout=out, stderr=subprocess.STDOUT,
                                       env={**os.environ, **ALONE, **(environment or {})})
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
