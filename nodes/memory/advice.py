"""What made `outside` grow, and whether a kernel of this pack can stop it: sentences for the person at the graph."""
import re

from .units import MIB, size

ENOUGH = MIB  # less growth than this is not talked of
OUTSIDE = (
    "Outside is Metal memory of this process that is not in torch's pool (driver - reserved), such as what MPSGraph "
    'keeps for every new shape it meets; out-of-memory messages call it "other allocations", and emptying torch\'s '
    "cache does not free it."
)
_OOM = re.compile(r"MPS allocated: ([\d.]+ \w+), other allocations: ([\d.]+ \w+), max allowed: ([\d.]+ \w+)")


def growth(session, name_of, leaking, state_of):
    """{"number", "grew_by", "node", "kernel", "can_stop", "text"} of a session.

    number    "outside", or "driver" where this torch can't tell the pool from the rest.
    node      the id of the node that made it grow most; None when it hardly grew or grew between nodes.
    can_stop  True: a kernel of this pack can stop it. False: none can. None: nothing grew.
    leaking   kernel -> stock's fault in words, of the kernels that could help on this torch.
    state_of  kernel -> (state, reason).
    """
    number = "driver" if session.first.outside is None else "outside"
    grew = getattr(session.last, number) - getattr(session.first, number)
    found = {"number": number, "grew_by": grew, "node": None, "kernel": None, "can_stop": None}
    worst = max(session.nodes.values(), key=lambda node: node.growth[number], default=None)
    by_node = worst.growth[number] if worst is not None else 0
    if max(by_node, session.between[number]) < ENOUGH:
        return {**found, "text": f"{number.capitalize()} memory did not grow in this prompt."}
    if session.between[number] > by_node:
        text = f"{number.capitalize()} memory grew by {size(session.between[number])} between nodes, in none of them."
        return {**found, "can_stop": False, "text": f"{text} {_NONE}"}
    text = f"{name_of(worst.node_id)} made {number} grow by {size(by_node)}"
    if worst.overlapped:
        text += f" (or {', '.join(map(name_of, sorted(worst.overlapped)))}, which ran at the same time)"
    found["node"] = worst.node_id
    for kernel, fault in leaking.items():
        taken, passed = worst.kernels.get(kernel, (0, 0))
        if passed:
            return {**found, "kernel": kernel, "can_stop": True,
                    "text": f"{text}. {_left_to_stock(kernel, taken, passed, fault, *state_of(kernel))}"}
    return {**found, "can_stop": False, "text": f"{text}. {_why_none(worst, leaking)}"}


_NONE = "No kernel of this pack can stop that."


def _left_to_stock(kernel, taken, passed, fault, state, reason):
    calls = f"{passed:,} {kernel} call{'' if passed == 1 else 's'} in it ran in torch's own kernel ({fault})"
    ours = f"; {taken:,} ran in this pack's" if taken else ""
    if state in ("failed", "unavailable"):
        return f"{calls}{ours}. This pack's {kernel} kernel would stop that, but it is {state}: {reason.rstrip('.')}."
    return (f"{calls}{ours}. This pack's {kernel} kernel keeps nothing: set {kernel} to on (with a Metal Kernels "
            f"Switch upstream of the node, or by METAL_KERNELS={kernel}=on). What is kept already stays until ComfyUI "
            "is restarted.")


def _why_none(node, leaking):
    ours = [f"all {node.kernels[kernel][0]:,} {kernel} calls in it ran in this pack's kernel already"
            for kernel in leaking if node.kernels.get(kernel, (0,))[0]]
    none = [f"it made no {kernel} call" for kernel in leaking if kernel not in node.kernels]
    because = ", and ".join(ours + none)
    return f"{_NONE[:-1]}{': ' + because if because else ''}."


def out_of_memory(message):
    """The numbers in torch's own message, {"reserved", "outside", "limit"} as it wrote them; None for another one.

    Its "MPS allocated" is the allocator's pool and its "other allocations" is driver - pool (MPSAllocator.mm), so that
    torch before 2.13, which has no call for either, tells them here.
    """
    found = _OOM.search(message or "")
    return dict(zip(("reserved", "outside", "limit"), found.groups(), strict=True)) if found else None
