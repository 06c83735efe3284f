"""The pack's JavaScript: its pure part by `node --test`, and that all of it is what a browser can load."""
import re
import shutil
import subprocess
from pathlib import Path

import pytest
from pack import ROOT

NODE = shutil.which("node")
needs_node = pytest.mark.skipif(NODE is None, reason="needs Node.js (apt-get install nodejs; brew install node)")
SCRIPTS = sorted(path for path in (ROOT / "js").rglob("*.js"))


@needs_node
def test_the_pure_modules():
    tests = sorted(map(str, Path(__file__).parent.glob("*.test.mjs")))
    done = subprocess.run([NODE, "--test", *tests], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stdout[-3000:]
    assert re.search(r"^# pass [1-9]", done.stdout, re.MULTILINE)


@needs_node
@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.name)
def test_every_script_parses_as_a_module(script):
    done = subprocess.run([NODE, "--input-type=module", "--check"], input=script.read_text(), capture_output=True,
                          text=True, timeout=60)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.name)
def test_scripts_import_only_what_ComfyUI_offers_to_packs(script):
    """Anything else of the frontend moves between its releases."""
    for source in re.findall(r"""from\s+["']([^"']+)["']""", script.read_text()):
        assert source in ("/scripts/app.js", "/scripts/api.js") or (script.parent / source).is_file(), source
    if script.parent.name == "lib":
        assert "/scripts/" not in script.read_text(), "lib/ is without ComfyUI"
