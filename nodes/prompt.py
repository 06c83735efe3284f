"""A prompt that runs, as features see it: its graph, and what ComfyUI's execution cache holds of it."""
import importlib

NEVER = float("nan")  # in a cache key: equal to nothing but the very same key


class Prompt:
    """A prompt that runs: what was sent, and from `node_started` on the graph with what expansions add to it."""

    def __init__(self, prompt_id, prompt, extra_data, executor=None):
        self.prompt_id = prompt_id
        self.prompt = prompt
        self.extra_data = extra_data
        self.dynprompt = None
        self._executor = executor

    def node(self, node_id):
        """The node's dict (class_type, inputs); empty for a node that does not exist."""
        if self.dynprompt is not None and self.dynprompt.has_node(node_id):
            return self.dynprompt.get_node(node_id)
        return self.prompt.get(node_id, {})

    def class_type(self, node_id):
        return self.node(node_id).get("class_type")

    def name(self, node_id):
        """For people: the title the user gave the node, or its class, and its id: "VAE Decode (#8)"."""
        node = self.node(node_id)
        title = (node.get("_meta") or {}).get("title") or node.get("class_type") or "node"
        return f"{title} (#{node_id})"

    def is_lazy(self, node_id, name):
        """Whether the node's input of this name is run only if the node asks for it."""
        try:
            node_class = importlib.import_module("nodes").NODE_CLASS_MAPPINGS[self.class_type(node_id)]
            info = importlib.import_module("comfy_execution.graph").get_input_info(node_class, name)[2]
        except Exception:  # a node's INPUT_TYPES is anybody's code; an input that nobody describes is never asked for
            return False
        return bool((info or {}).get("lazy"))

    def cached_outputs(self, node_id):
        """The node's outputs in ComfyUI's execution cache, under this prompt's key: a list for each; or None."""
        look = getattr(self._outputs_cache, "get_local", None)
        entry = look(node_id) if look is not None else None
        return getattr(entry, "outputs", None)

    def mark_cache_keys(self, mark):
        """For the rest of this prompt, add `mark(node_id)` (hashable; empty for nothing) to the cache keys that are
        made: those of nodes made by expansion. Such a key is made of the node and all that is upstream of it, but says
        nothing of the node that made it."""
        keys = getattr(self._outputs_cache, "is_changed_cache", None)
        stock = getattr(keys, "get", None)
        if stock is None:
            return  # no execution cache, no stale result

        async def get(node_id):
            changed, own = await stock(node_id), mark(node_id)
            return (changed, own) if own else changed

        keys.get = get  # an object of this prompt alone: it goes with the prompt

    def spoil_cache_keys(self, node_ids):
        """Let no later prompt find what these nodes make in this one: their cache keys equal no others from now on."""
        cache = self._outputs_cache
        cache_of = getattr(cache, "_get_cache_for", lambda node_id: cache)  # nodes made by expansion have their own
        for node_id in node_ids:
            keys = getattr(getattr(cache_of(node_id), "cache_key_set", None), "keys", {})
            if node_id in keys:
                keys[node_id] = (NEVER, keys[node_id])  # NaN: cache providers outside this process leave it alone, too

    @property
    def _outputs_cache(self):
        return getattr(getattr(self._executor, "caches", None), "outputs", None)
