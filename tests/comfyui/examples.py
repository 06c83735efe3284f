"""The example workflows through a real ComfyUI: python examples.py COMFYUI_DIR OUT_FOLDER

Runs each as a user would, with tiny random models for checkpoints; prints what its nodes show, saves their pictures.
"""
import copy
import json
import shutil
import sys
import urllib.parse
import urllib.request
from pathlib import Path

from convert import to_api
from fp8 import checkpoints
from fp8.example_models import FILES
from server import ROOT, running

FOLDER = ROOT / "example_workflows"
WORKFLOWS = sorted(path.stem for path in FOLDER.glob("*.json"))
# What stands for a VAE that a user has to download: the tiny one of the tests, with outputs in the same places. A
# workflow with a sampler needs models that fit together, and keeps its loaders, with small files (FILES).
STAND_INS = {"VAELoader": ("TestTinyVAE", {})}


def read(*parts):
    """A workflow of example_workflows/, or of its folder api/."""
    return json.loads(FOLDER.joinpath(*parts).read_text(encoding="utf-8"))


def with_stand_ins(prompt):
    """The prompt with checkpoints replaced, and pictures so small that the software device takes seconds; a video has
    five frames, which are smaller still, and what is sampled is the smallest."""
    prompt = copy.deepcopy(prompt)
    samples = any(entry["class_type"] == "KSampler" for entry in prompt.values())
    edge = 128 if samples else 256 if any("amount" in entry["inputs"] for entry in prompt.values()) else 512
    for entry in prompt.values():
        if samples:
            small = {name: FILES[value] for name, value in entry["inputs"].items() if value in list(FILES)}
            entry["inputs"].update(small)
        elif entry["class_type"] in STAND_INS:
            entry["class_type"], entry["inputs"] = STAND_INS[entry["class_type"]]
        for name, most in ("width", edge), ("height", edge), ("amount", 5), ("steps", 2):
            if isinstance(entry["inputs"].get(name), int):
                entry["inputs"][name] = min(most, entry["inputs"][name])
    return prompt


def give_picture(comfyui, path):
    """Put the picture that ComfyUI comes with, and that its own examples load, where this server looks for pictures."""
    shutil.copy(Path(path, "input", "example.png"), comfyui.folder / "input")


def give_files(comfyui, path):
    """All that the example workflows load, small, where this server looks for it."""
    give_picture(comfyui, path)
    checkpoints.make("example_models", path, comfyui.folder / "models")


def save_pictures(comfyui, images, stem):
    """Fetch the pictures that a node shows, as the browser does; their paths."""
    saved = []
    for number, image in enumerate(images):
        query = urllib.parse.urlencode({key: image[key] for key in ("filename", "subfolder", "type")})
        target = stem.with_name(f"{stem.name}_{number}{Path(image['filename']).suffix}")
        with urllib.request.urlopen(f"http://127.0.0.1:{comfyui.port}/view?{query}", timeout=30) as answer:
            target.write_bytes(answer.read())
        saved.append(target)
    return saved


def main(path, out):
    out = Path(out)
    out.mkdir(parents=True, exist_ok=True)
    print("Starting ComfyUI on the software Metal device, stock with the faults of torch 2.13 ...", flush=True)
    with running(path) as comfyui:
        give_files(comfyui, path)
        object_info = comfyui.get("/object_info")
        for name in WORKFLOWS:
            prompt = with_stand_ins(to_api(read(f"{name}.json"), object_info))
            print(f"\n== {name}", flush=True)
            outputs = comfyui.run(prompt, seconds=900)["outputs"]
            for node_id, shown in sorted(outputs.items()):
                if node_id not in prompt:
                    continue
                print(f"-- {prompt[node_id]['_meta']['title']} (#{node_id})")
                for text in shown.get("text", ()):
                    print(text)
                for picture in save_pictures(comfyui, shown.get("images", ()), out / f"{name}_{node_id}"):
                    print(f"picture: {picture}")


if __name__ == "__main__":
    if len(sys.argv) != 3:
        raise SystemExit(__doc__)
    main(*sys.argv[1:])
