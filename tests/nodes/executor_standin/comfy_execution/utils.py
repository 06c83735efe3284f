"""What surrounds each call of a node's function."""
from types import SimpleNamespace


class CurrentNodeContext:
    def __init__(self, prompt_id, node_id, list_index=None):
        self.context = SimpleNamespace(prompt_id=prompt_id, node_id=node_id, list_index=list_index)

    def __enter__(self):
        return self

    def __exit__(self, exc_type, exc_val, exc_tb):
        return None
