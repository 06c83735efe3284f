"""PromptExecutor: runs the nodes of a prompt in the order in which they stand in it."""
import asyncio
import inspect
from types import SimpleNamespace

from comfy_execution.progress import ProgressRegistry
from comfy_execution.utils import CurrentNodeContext


class Interrupted(Exception):
    """What a node raises when the user presses cancel."""


class DynamicPrompt:
    def __init__(self, original_prompt):
        self.original_prompt, self.ephemeral_prompt, self.parents = original_prompt, {}, {}

    def get_node(self, node_id):
        return self.ephemeral_prompt.get(node_id) or self.original_prompt[node_id]

    def has_node(self, node_id):
        return node_id in self.original_prompt or node_id in self.ephemeral_prompt

    def add_ephemeral_node(self, node_id, node_info, parent_id, display_id):
        self.ephemeral_prompt[node_id], self.parents[node_id] = node_info, parent_id

    def get_parent_node_id(self, node_id):
        return self.parents.get(node_id)

    def get_real_node_id(self, node_id):
        while node_id in self.parents:
            node_id = self.parents[node_id]
        return node_id

    def all_node_ids(self):
        return {*self.original_prompt, *self.ephemeral_prompt}


class IsChangedCache:
    async def get(self, node_id):
        return False


class Cache:
    """Outputs by node id; what is held under a key that is none of this prompt's is gone. `keys` shows the part of the
    key that is asked of IsChangedCache."""

    def __init__(self):
        self.entries, self.keys = {}, {}

    def set_prompt(self, node_ids):
        spoiled = {node_id for node_id, key in self.keys_in_force().items() if key != node_id}
        self.entries = {node_id: entry for node_id, entry in self.entries.items() if node_id not in spoiled}
        self.cache_key_set = SimpleNamespace(keys={node_id: node_id for node_id in node_ids})

    def keys_in_force(self):
        return self.cache_key_set.keys if hasattr(self, "cache_key_set") else {}

    def get_local(self, node_id):
        return self.entries.get(node_id)


class PromptExecutor:
    """functions: class_type -> function(executor, node_id, item), called once for each of inputs["items"]. What it
    returns is an expansion's nodes. Async nodes go on by themselves until a node names them in inputs["join"].
    """

    def __init__(self, functions):
        self.functions = functions
        self.reset()

    def reset(self):
        self.caches = SimpleNamespace(outputs=Cache())
        self.status_messages = []

    def add_message(self, event, data):
        self.status_messages.append((event, data))

    async def execute_async(self, prompt, prompt_id, extra_data={}, execute_outputs=[]):  # noqa: B006  (as in ComfyUI)
        self.status_messages = []
        self.prompt_id, self.graph = prompt_id, DynamicPrompt(prompt)
        self.registry = ProgressRegistry(prompt_id, self.graph)
        if isinstance(self.caches.outputs, Cache):
            self.caches.outputs.set_prompt(prompt)
        self.caches.outputs.is_changed_cache = IsChangedCache()
        self.tasks = {}
        for node_id in prompt:
            if not await self.run(node_id):
                return
        await self.join(self.tasks)
        self.add_message("execution_success", {"prompt_id": prompt_id})

    async def run(self, node_id):
        """One node, from its start to its end; an async one to its first wait. False when it failed."""
        inputs = self.graph.get_node(node_id)["inputs"]
        await self.join(inputs.get("join", ()))
        function = self.functions[self.graph.get_node(node_id)["class_type"]]
        if self.caches.outputs.get_local(node_id) is not None:
            self.registry.finish_progress(node_id)
            return True
        self.registry.start_progress(node_id)
        try:
            for item in inputs.get("items", [None]):
                if inspect.iscoroutinefunction(function):
                    self.tasks[node_id] = asyncio.create_task(self.call_async(function, node_id, item))
                    await asyncio.sleep(0)
                    return True
                with CurrentNodeContext(self.prompt_id, node_id):
                    expansion = function(self, node_id, item)
                if not await self.expand(node_id, expansion or {}):
                    return False
        except Interrupted:
            self.add_message("execution_interrupted", {"node_id": self.graph.get_real_node_id(node_id)})
            return False
        except Exception as error:
            self.add_message("execution_error", {"node_id": self.graph.get_real_node_id(node_id),
                                                 "exception_message": f"{error}\n"})
            return False
        self.registry.finish_progress(node_id)
        return True

    async def call_async(self, function, node_id, item):
        with CurrentNodeContext(self.prompt_id, node_id):
            await function(self, node_id, item)

    async def join(self, node_ids):
        for node_id in list(node_ids):
            await self.tasks.pop(node_id)
            self.registry.finish_progress(node_id)

    async def expand(self, node_id, graph):
        """Add the nodes to the graph, below node_id; note their cache keys; run them. False when one failed."""
        for new, node in graph.items():
            self.graph.add_ephemeral_node(new, node, node_id, node_id)
        for new in graph:
            self.caches.outputs.keys[new] = await self.caches.outputs.is_changed_cache.get(new)
        for new in graph:
            if not await self.run(new):
                return False
        return True
