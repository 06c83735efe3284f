"""Which switch governs a node: pure functions of the prompt's graph, a node and the values of the switches.

The graph is anything with ComfyUI's DynamicPrompt methods `has_node`, `get_node` and `get_parent_node_id`. A switch's
values are a dict, kernel -> "auto" | "on" | "off"; a kernel that it does not name keeps the mode of the whole process.
"""
import reprlib
from typing import NamedTuple

from ..given import described

SWITCH = "MetalKernelsSwitch"
MODES = ("auto", "on", "off")
DEFAULT = "auto"  # of an input that a prompt leaves out


class Ruling(NamedTuple):
    """settings: what the node runs with; {} is the process's own modes. switches: the ids of the nearest ones, sorted.
    conflict: the kernels, sorted, that they disagree about, equally near as they are: none of them applies to those."""

    settings: dict
    switches: tuple = ()
    conflict: tuple = ()


NONE = Ruling({})


def govern(graph, node_id, values, known=None):
    """The ruling over one node.

    The nearest switch among its ancestors, by number of links, wins. A node made by expansion that has none among its
    ancestors is governed as the node that made it. A switch governs what is downstream of it, not itself.

    values  switch id -> its dict, or None where they can't be known: its values come by a link and it has not run, or
            may not have (beyond a lazy input). Such a switch governs nothing.
    known   node id -> Ruling, of earlier calls with the same values; what is found now is added. A graph only grows:
            nothing that is added to it comes upstream of a node that is there already. Cache keys ask again and again.
    """
    known, asked, ruling = {} if known is None else known, [], NONE
    while node_id is not None:
        if node_id in known:
            ruling = known[node_id]
            break
        asked.append(node_id)
        switches = nearest(graph, node_id)
        if switches:
            said = list(map(values, switches))
            if None in said:  # they may be known later
                known = {}
            ruling = Ruling(*_agreed([found for found in said if found is not None], switches))
            break
        node_id = graph.get_parent_node_id(node_id)
    known.update(dict.fromkeys(asked, ruling))
    return ruling


def _agreed(known, switches):
    """The fields of a Ruling by switches that are equally near. What a switch leaves out stands for its schema's
    default, but where all leave it out, or disagree, the kernel keeps the mode of the whole process."""
    said = {kernel: {found.get(kernel, DEFAULT) for found in known} for found in known for kernel in found}
    settings = {kernel: values.pop() for kernel, values in said.items() if len(values) == 1}
    return settings, switches, tuple(sorted(said.keys() - settings.keys()))


def nearest(graph, node_id):
    """Ids of the switches that are the fewest links upstream of the node, sorted; () without any."""
    seen, level = {node_id}, [node_id]
    while level:
        above = []
        for below in level:
            for source in sources(graph, below):
                if source not in seen:
                    seen.add(source)
                    above.append(source)
        switches = [source for source in above if is_switch(graph, source)]
        if switches:
            return tuple(sorted(switches))
        level = above
    return ()


def downstream(graph, node_ids):
    """These nodes and all that their outputs go into; of a node made by expansion also the node that made it."""
    takers = {}
    for node_id in graph.all_node_ids():
        for source in sources(graph, node_id):
            takers.setdefault(source, []).append(node_id)
    found, ahead = set(), list(node_ids)
    while ahead:
        node_id = ahead.pop()
        if node_id is not None and node_id not in found:
            found.add(node_id)
            ahead += [*takers.get(node_id, ()), graph.get_parent_node_id(node_id)]
    return found


def sources(graph, node_id):
    """Ids of the nodes that this one's inputs come from by link."""
    return (value[0] for _, value in links(graph, node_id))


def links(graph, node_id):
    """(name, link) of the node's inputs that come from a node by link."""
    for name, value in graph.get_node(node_id).get("inputs", {}).items():
        if is_link(value) and graph.has_node(value[0]):
            yield name, value


def is_link(value):
    """ComfyUI's form of a link in a prompt: [node id, output index]."""
    return (isinstance(value, list) and len(value) == 2 and isinstance(value[0], str)
            and isinstance(value[1], (int, float)))


def is_switch(graph, node_id):
    return graph.get_node(node_id).get("class_type") == SWITCH


def certain(graph, node_id, switch_id, is_lazy):
    """Whether the switch has run, now or when its results were cached, wherever this node runs: no lazy input between.

    is_lazy  (node id, name of an input) -> whether that input is run only if the node asks for it
    """
    while node_id is not None:
        seen, ahead = set(), [node_id]
        while ahead:
            below = ahead.pop()
            seen.add(below)
            found = {value[0] for name, value in links(graph, below) if not is_lazy(below, name)}
            if switch_id in found:
                return True
            ahead += found - seen
        node_id = graph.get_parent_node_id(node_id)
    return False


def written(graph, switch_id, kernels):
    """The values that stand in a switch's own widgets; None when one of them comes by a link, or is no mode."""
    inputs = graph.get_node(switch_id).get("inputs", {})
    values = {kernel: inputs[kernel] for kernel in kernels if kernel in inputs}
    return values if all(map(is_mode, values.values())) else None


def switched_on(values, needed):
    """The kernels that these values switch on where torch needs those of `needed`."""
    return {kernel for kernel, value in values.items() if value == "on" or (value == "auto" and kernel in needed)}


def may_switch_on(node, kernels, needed):
    """The kernels that this switch switches on, or takes from a link."""
    inputs = {kernel: value for kernel, value in node.get("inputs", {}).items() if kernel in kernels}
    return switched_on(inputs, needed) | {kernel for kernel, value in inputs.items() if is_link(value)}


def is_mode(value):
    return isinstance(value, str) and value in MODES


def check(values):
    """Raises ValueError, in one sentence that names the value, for a mode that does not exist."""
    for kernel, value in values.items():
        if not is_mode(value):
            contained = value is None or isinstance(value, (list, tuple, dict))
            named = reprlib.repr(value) if contained else described(value).removeprefix(f"the {type(value).__name__} ")
            raise ValueError(f"{kernel} of the Metal Kernels Switch is {named}: it must be auto, on or off.")


def as_text(values):
    """The switch's second output, METAL_KERNELS' own notation: "pad=off,softmax=auto"."""
    return ",".join(f"{kernel}={value}" for kernel, value in values.items())


def from_text(text):
    """The values that `as_text` wrote; None for anything else (an output that is blocked)."""
    if not isinstance(text, str):
        return None
    pairs = [pair.partition("=") for pair in text.split(",") if pair]
    values = {kernel: value for kernel, _, value in pairs}
    return values if all(map(is_mode, values.values())) else None
