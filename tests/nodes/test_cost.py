"""What the hooks cost a prompt that holds none of the pack's nodes: processor time a node, against the miniature."""
import time

import pytest
from executor import node, run

NODES = 400
MICROSECOND = 1e-6


def per_node(executor, prompt):
    """Processor seconds a node: the least of some runs, which is what the machine's other work disturbs least."""
    found = []
    for _ in range(9):
        executor.reset()
        start = time.process_time()
        run(executor, prompt)
        found.append((time.process_time() - start) / len(prompt))
    return min(found)


@pytest.mark.parametrize("registered, most", [((), 3), (("pad",), 30)], ids=["nothing patched", "patched"])
def test_a_prompt_without_the_packs_nodes(world, executor, registered, most):
    """Where nothing is patched a prompt is not followed at all. Where something is, it is followed, so that a failing
    node's error can name the kernels that ran in it; a sampler's step alone takes a hundred times this."""
    world.library.patched = set(registered)
    executor.functions["Nothing"] = lambda executor, node_id, item: None
    prompt = {str(number): node("Nothing", value=[str(number - 1), 0]) for number in range(1, NODES)}
    hooked = per_node(executor, prompt)
    world.hooks.uninstall()
    bare = per_node(executor, prompt)
    print(f"{(hooked - bare) / MICROSECOND:.2f} us a node more than {bare / MICROSECOND:.1f} us")
    assert hooked - bare < most * MICROSECOND
