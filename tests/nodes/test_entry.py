"""The ComfyUI entry: it installs at load, lists the nodes, and never raises, whatever is wrong."""
import asyncio
import importlib.util
import json
import logging
import os
import shutil
import subprocess
import sys

import pytest
from pack import ROOT, STANDIN, load

# Loads a copy of the pack as ComfyUI does, in a process of its own, and prints what came of it.
LOADER = """
import asyncio, importlib.util, json, logging, sys
logging.basicConfig(level=logging.INFO, stream=sys.stderr)
folder, setup = sys.argv[1:]
exec(setup)
name = folder.replace(".", "_x_")
spec = importlib.util.spec_from_file_location(name, folder + "/__init__.py")
pack = importlib.util.module_from_spec(spec)
sys.modules[name] = pack
spec.loader.exec_module(pack)

async def start():
    extension = await pack.comfy_entrypoint()
    if extension is None:
        return None
    await extension.on_load()
    return await extension.get_node_list()

nodes = asyncio.run(start())
found = {"nodes": None if nodes is None else [node.GET_SCHEMA().node_id for node in nodes]}
if nodes:
    status = next(node for node in nodes if node.GET_SCHEMA().node_id == "MetalKernelsStatus")
    text, report = status.execute().result
    found.update(text=text, report=json.loads(report))
print(json.dumps(found))
"""


@pytest.fixture
def copy(tmp_path):
    """A copy of the pack, in a folder named as ComfyUI-Manager names it."""
    target = tmp_path / "metal-kernels"
    target.mkdir()
    shutil.copy(ROOT / "__init__.py", target)
    for folder in ("nodes", "metal_kernels", "js"):
        shutil.copytree(ROOT / folder, target / folder, ignore=shutil.ignore_patterns("__pycache__"))
    return target


def start(folder, setup="", standin=True, **environment):
    """(what the loader printed, its log) of a pack started in a process of its own."""
    environment = {**os.environ, "PYTHONPATH": str(STANDIN) if standin else "", **environment}
    done = subprocess.run([sys.executable, "-c", LOADER, str(folder), setup], capture_output=True, text=True,
                          env=environment, timeout=120)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1]), done.stderr


def test_on_this_machine_it_loads_and_says_why_nothing_is_patched(copy):
    if sys.platform == "darwin":
        pytest.skip("a Mac has MPS; what is patched there is `python -m metal_kernels selftest`'s to show")
    found, log = start(copy)
    assert "MetalKernelsStatus" in found["nodes"]
    pad = found["report"]["kernels"]["pad"]
    assert pad["state"] == "unavailable" and "MPS" in pad["reason"]
    assert "Nothing is patched" in found["text"]
    assert log.count("INFO:metal_kernels") == 1 and "Traceback" not in log


@pytest.mark.parametrize("break_it, said", [
    ("rm metal_kernels/__init__.py; echo 'raise OSError(\"disk\")' > metal_kernels/__init__.py", "OSError: disk"),
    ("echo 'def (' > metal_kernels/patcher.py", "SyntaxError"),
    ("printf 'def install():\\n    raise RuntimeError(\"no way\")\\ndef status():\\n    return {}\\n'"
     " > metal_kernels/__init__.py", "RuntimeError: no way"),
    ("printf 'def install(*_):\\n    pass\\nadd_extension = install\\ndef status():\\n    raise KeyError(\"x\")\\n'"
     " > metal_kernels/__init__.py", "KeyError: 'x'"),
], ids=["import fails", "syntax error", "install fails", "status fails"])
def test_the_nodes_register_and_say_what_is_wrong(copy, break_it, said):
    subprocess.run(break_it, shell=True, cwd=copy, check=True)
    found, _ = start(copy)
    assert "MetalKernelsStatus" in found["nodes"]
    assert said in found["report"]["problem"]
    assert found["text"].startswith("Metal Kernels does nothing here: ") and said in found["text"]


def test_without_torch_mps(copy):
    found, _ = start(copy, setup="import torch; del torch.mps; sys.modules['torch.mps'] = None")
    assert "MetalKernelsStatus" in found["nodes"]


def test_a_node_that_cannot_be_imported_leaves_the_others(copy):
    (copy / "nodes" / "broken").mkdir()
    (copy / "nodes" / "broken" / "__init__.py").write_text("")
    (copy / "nodes" / "broken" / "node.py").write_text("import nothing_of_that_name\n")
    text = (copy / "nodes" / "__init__.py").read_text()
    (copy / "nodes" / "__init__.py").write_text(text.replace("NODES = {", 'NODES = {"broken": ("Broken",), '))
    found, log = start(copy)
    assert "MetalKernelsStatus" in found["nodes"]
    assert "nodes/broken can't be loaded" in log


def test_an_older_comfyui_without_the_node_api(copy):
    found, log = start(copy, standin=False)
    assert found["nodes"] is None
    assert "lacks the node API of 0.30" in log


def test_importing_the_pack_patches_nothing():
    pack = load()
    assert pack.metal_kernels.status()["installed"] is False
    assert not hasattr(pack, "NODE_CLASS_MAPPINGS"), "with it ComfyUI would never call comfy_entrypoint"


def test_on_load_installs(loaded):
    pack, nodes = loaded
    assert pack.metal_kernels.status()["installed"] is True
    assert "MetalKernelsStatus" in nodes


def test_one_uninstall_for_all_of_it(loaded):
    """What stands in ComfyUI goes and comes with the kernels."""
    pack, _ = loaded
    execution = importlib.import_module(f"{pack.__name__}.nodes.execution")
    extensions = [each.__name__.removeprefix(f"{pack.__name__}.nodes.")
                  for each in pack.metal_kernels._installation.extensions]
    assert extensions == ["execution", "fp8.kitchen", "fp8.stock", "memory.out_of_memory"]
    for module in sorted((ROOT / "nodes").rglob("*.py")):
        name = ".".join(module.relative_to(ROOT / "nodes").with_suffix("").parts).removesuffix(".__init__")
        if "\ndef uninstall(" in module.read_text():
            assert name in extensions, f"nodes/{name} is put in and never taken out"
    assert execution.problem() != "the hooks are not installed"
    pack.metal_kernels.uninstall()
    assert execution.problem() == "the hooks are not installed"
    pack.metal_kernels.install()
    assert execution.problem() != "the hooks are not installed"


def test_on_the_device_one_line_says_what_is_patched_and_how_to_switch_it_off(comfy_api, mps, caplog):
    import softmetal

    softmetal.activate(faults="2.13")
    pack = load()
    pack.metal_kernels.uninstall()
    with caplog.at_level(logging.INFO, logger="metal_kernels"):
        extension = asyncio.run(pack.comfy_entrypoint())
        asyncio.run(extension.on_load())
    try:
        lines = [r.getMessage() for r in caplog.records if r.name == "metal_kernels"]
        assert len(lines) == 1
        assert "pad" in lines[0] and "METAL_KERNELS=off" in lines[0]
    finally:
        pack.metal_kernels.uninstall()
        softmetal.activate()


def test_it_does_not_take_the_names_of_others(loaded):
    """ComfyUI has a top-level `nodes`, and a user may have installed `metal_kernels` as a library."""
    for name in ("nodes", "metal_kernels"):
        module = sys.modules.get(name)
        assert module is None or not str(getattr(module, "__file__", "")).startswith(str(ROOT / name))
    assert importlib.util.find_spec("metal_kernels_pack.nodes") is not None
