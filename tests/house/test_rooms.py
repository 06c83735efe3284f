"""A line of code knows its room (design): what may be mentioned where, and how long a module may be."""
import ast
import re

import pytest
from pack import ROOT

LIBRARY = sorted((ROOT / "metal_kernels").rglob("*.py"))
PACK = [ROOT / "__init__.py", *LIBRARY, *sorted((ROOT / "nodes").rglob("*.py"))]
EVERYTHING = [path for path in (*PACK, *sorted((ROOT / "tests").rglob("*.py")))]


def mentions(path):
    """(line, dotted name) of every import, name and attribute; docstrings and comments say what they like."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield from ((node.lineno, f"{'.' * node.level}{node.module or ''}.{alias.name}") for alias in node.names)
        elif isinstance(node, ast.Attribute | ast.Name):
            yield node.lineno, ast.unparse(node)


def offenders(pattern, paths, allowed):
    return sorted({f"{path.relative_to(ROOT)}:{line}: {name}" for path in paths
                   if str(path.relative_to(ROOT)) not in allowed
                   for line, name in mentions(path) if re.search(pattern, name)})


@pytest.mark.parametrize("pattern, paths, allowed", [
    (r"(^|\.)(comfy\w*|server|folder_paths|PromptServer)\b", LIBRARY, ()),
    (r"\bcompile_shader\b", PACK, ("metal_kernels/shader.py",)),
    (r"\btorch\.library\b", PACK, ("metal_kernels/patcher.py", "metal_kernels/ops/define.py")),
    (r"\btorch\.(__version__|version\b|torch_version)", PACK, ("metal_kernels/environment.py",)),
    (r"\b(TorchFunctionMode|TorchDispatchMode)\b", LIBRARY, ()),
], ids=["comfy only in nodes/", "compile_shader only in shader.py",
        "torch.library only in patcher.py and ops/define.py",
        "torch's version only in environment.py", "no mode is installed"])
def test_room(pattern, paths, allowed):
    assert offenders(pattern, paths, allowed) == []


def test_the_rules_see_an_offender(tmp_path, monkeypatch):
    monkeypatch.setitem(globals(), "ROOT", tmp_path)
    lines = "import comfy.utils", "from torch.library import Library", "lib = torch.mps.compile_shader('')"
    (tmp_path / "x.py").write_text("\n".join(lines))
    for pattern in (r"^comfy", r"\btorch\.library\b", r"\bcompile_shader\b"):
        assert len(offenders(pattern, [tmp_path / "x.py"], ())) >= 1


def test_families_keep_to_themselves():
    """A family imports kernel, shader and the like, never another family (fp8 may use linear's public function)."""
    families = {path.parent.name for path in (ROOT / "metal_kernels").glob("*/*.metal")}
    assert "pad" in families
    found = []
    for path in LIBRARY:
        parts = path.relative_to(ROOT / "metal_kernels").parts
        own = parts[0] if len(parts) > 1 else None
        for line, name in mentions(path):
            other = re.match(r"\.+(\w+)", name)
            if own and other and name.startswith("..") and other[1] in families - {own}:
                # conformance and ops stand above the families.
                if own in families and (own, other[1]) != ("fp8", "linear"):
                    found.append(f"{path.relative_to(ROOT)}:{line}: {name}")
    assert found == []


def test_imports_inside_the_pack_are_relative():
    """ComfyUI loads the pack under another name, and has a top-level `nodes` of its own."""
    absolute = [f"{path.relative_to(ROOT)}:{node.lineno}: {ast.unparse(node)}" for path in PACK
                for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
                if isinstance(node, ast.Import | ast.ImportFrom)
                and re.match(r"(import|from) (metal_kernels|nodes)\b", ast.unparse(node))]
    assert absolute == []


def test_no_module_is_long():
    lengths = {str(path.relative_to(ROOT)): len(path.read_text(encoding="utf-8").splitlines()) for path in EVERYTHING}
    assert {name: n for name, n in lengths.items() if n > 400} == {}


def test_metal_sources_are_ascii_and_self_contained():
    sources = sorted((ROOT / "metal_kernels").rglob("*.metal"))
    assert sources
    for path in sources:
        text = path.read_bytes().decode("ascii")
        assert not re.search(r"#\s*include\s*[<\"](c10|ATen|torch)", text), path
