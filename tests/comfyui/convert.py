"""What the browser does when Queue is pressed: a workflow (UI format) as a prompt (API format).

Covers what the example workflows use: widgets, links, reroutes, notes, muted and bypassed nodes. No subgraphs.
"""
MUTED, BYPASSED = 2, 4
VIRTUAL = ("Note", "MarkdownNote", "Reroute")
WIDGETS = ("INT", "FLOAT", "STRING", "BOOLEAN", "COMBO")


def to_api(workflow, object_info, newer_inputs=True):
    """The prompt of `workflow`. object_info: what ComfyUI's /object_info says of the node classes.

    A workflow may be older than its nodes: optional inputs appended since have no value in it. The browser sends their
    defaults; newer_inputs=False leaves them out.

    Raises ValueError for a node class that this ComfyUI lacks, or for widget values that don't fit its inputs.
    """
    nodes = {node["id"]: node for node in workflow["nodes"]}
    links = {link[0]: link for link in workflow["links"]}
    prompt = {}
    for node in sorted(workflow["nodes"], key=lambda node: node["order"]):
        if node["type"] in VIRTUAL or node.get("mode", 0) in (MUTED, BYPASSED):
            continue
        if node["type"] not in object_info:
            raise ValueError(f"this ComfyUI has no node {node['type']!r}")
        inputs = widget_values(node, object_info[node["type"]], newer_inputs)
        for slot in node.get("inputs", ()):
            source = resolve(slot.get("link"), nodes, links)
            if source is not None:
                inputs[slot["name"]] = source
        title = node.get("title") or object_info[node["type"]]["display_name"]
        prompt[str(node["id"])] = {"inputs": inputs, "class_type": node["type"], "_meta": {"title": title}}
    # A link to a node that is left out (muted) is no link.
    for node in prompt.values():
        node["inputs"] = {name: value for name, value in node["inputs"].items()
                          if not (isinstance(value, list) and value[0] not in prompt)}
    return prompt


def widget_values(node, info, newer_inputs=True):
    """name -> value of the node's widgets, which are saved by position: required inputs first, then optional ones."""
    values, inputs = list(node.get("widgets_values") or ()), {}
    for name, (kind, *options) in {**info["input"].get("required", {}), **info["input"].get("optional", {})}.items():
        options = options[0] if options else {}
        if options.get("forceInput") or not (isinstance(kind, list) or kind in WIDGETS):
            continue
        if not values and name in info["input"].get("optional", {}):
            if newer_inputs:
                inputs[name] = options.get("default")
            continue
        if not values:
            raise ValueError(f"node {node['id']} ({node['type']}) has no value for {name}")
        inputs[name] = values.pop(0)
        if options.get("control_after_generate"):
            values.pop(0)  # fixed, increment, decrement, randomize: the browser's own
        if options.get("image_upload"):
            values[:1] = []  # the upload button
    if values:
        raise ValueError(f"node {node['id']} ({node['type']}) has values for no input: {values}")
    return inputs


def resolve(link, nodes, links):
    """[node id, output] behind reroutes and bypassed nodes; None for no link, or one that ends there."""
    while link is not None:
        _, source_id, output, *_ = links[link]
        source = nodes[source_id]
        if source.get("mode", 0) == MUTED:
            return None
        if source["type"] == "Reroute":
            link = source["inputs"][0].get("link")
        elif source.get("mode", 0) == BYPASSED:
            link = through(source, output)
        else:
            return [str(source_id), output]
    return None


def through(node, output):
    """The link of the input that a bypassed node passes to this output: the same slot if its type fits, else the first
    that does."""
    kind, inputs = node["outputs"][output]["type"], node.get("inputs", [])
    same = inputs[output:output + 1]
    for slot in [*same, *inputs]:
        if slot["type"] == kind or "*" in (slot["type"], kind):
            return slot.get("link")
    return None
