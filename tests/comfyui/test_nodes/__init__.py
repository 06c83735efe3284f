"""A second, tiny pack for the tests alone: nodes that pad, fail, wait, expand; routes that show the process."""
from .routes import add_routes

add_routes()


async def comfy_entrypoint():
    from comfy_api.latest import ComfyExtension

    from . import fp8_nodes, graph_nodes, memory_nodes, pad_nodes, vae_nodes, value_nodes

    memory_nodes.add_routes()
    vae_nodes.add_routes()
    fp8_nodes.add_routes()

    class TestExtension(ComfyExtension):
        async def get_node_list(self):
            return [*graph_nodes.NODES, *pad_nodes.NODES, *vae_nodes.NODES, *memory_nodes.NODES, *value_nodes.NODES,
                    *fp8_nodes.NODES]

    return TestExtension()
