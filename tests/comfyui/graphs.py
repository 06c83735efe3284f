"""Short hands for prompts in API format and for what comes back."""


def node(class_type, /, **inputs):
    """A node; a link is ("id", output)."""
    return {"class_type": class_type,
            "inputs": {name: list(value) if isinstance(value, tuple) else value for name, value in inputs.items()}}


def switch(value="x", **modes):
    return node("MetalKernelsSwitch", value=value, **modes)


def pad(*sources, **inputs):
    """A TestPad below the outputs 0 of `sources`."""
    return node("TestPad", **dict(zip(("value", "also"), ((source, 0) for source in sources), strict=False)), **inputs)


def compare(value, reference, **inputs):
    """MetalParityCompare of the outputs 0 of two nodes."""
    return node("MetalParityCompare", value=(value, 0), reference=(reference, 0), **inputs)


def check(**inputs):
    """MetalParityVAE of the node "vae", a TestTinyVAE unless the graph says otherwise."""
    return node("MetalParityVAE", **{"vae": ("vae", 0), "image_or_latent": ("vae", 1), "operation": "decode",
                                     "region": "whole", **inputs})


def reports(entry, node_id):
    """What a padding node said in this prompt, or when it ran if its result came from the cache."""
    return entry["outputs"][node_id]["reports"]


def by(entry, *node_ids):
    """Who took each node's pads: "pack" or "stock"; both, joined, where they differ."""
    said = ["+".join(dict.fromkeys(report["by"] for report in reports(entry, node_id))) for node_id in node_ids]
    return said if len(said) > 1 else said[0]


def digests(entry):
    """Every padding node's digests, what it made bit for bit, and what TestShow nodes show. (Without nodes made by
    expansion: ComfyUI lists those only when they run.)"""
    found = {}
    for node_id, output in sorted(entry["outputs"].items()):
        if "." not in node_id and ("reports" in output or "shown" in output):
            found[node_id] = [each.get("digest") or each["text"] for each in output.get("reports") or output["shown"]]
    return found


def cached(entry):
    """Ids of the nodes that did not run."""
    return set(next(data["nodes"] for kind, data in entry["status"]["messages"] if kind == "execution_cached"))


def error(entry):
    """The data of execution_error."""
    return next(data for kind, data in entry["status"]["messages"] if kind == "execution_error")
