"""What made `outside` grow, and whether a kernel of this pack can stop it: sentences for the person at the graph."""
import re

from .units import MIB, size

ENOUGH = MIB  # less growth than this is not talked of,
BESIDE = 0.05  # nor less than this part of the largest one
OUTSIDE = (
    "Outside is Metal memory of this process that is not in torch's pool (driver - reserved), such as what MPSGraph "
    'keeps for every new shape it meets; out-of-memory messages call it "other allocations", and emptying torch\'s '
    "cache does not free it."
)
_OOM = re.compile(r"MPS allocated: ([\d.]+ \w+), other allocations: ([\d.]+ \w+)(?:, max allowed: ([\d.]+ \w+))?")


def growth(session, name_of, leaking, state_of):
    """{"number", "grew_by", "nodes", "node", "kernel", "can_stop", "headline", "text"} of a session.

    number    "outside", or "driver" where this torch can't tell the pool from the rest.
    nodes     ids of those that made it grow much, most first; node: the first of them. Empty and None when it hardly
              grew or grew most between nodes.
    can_stop  True: `kernel`, one of this pack's, can stop it. False: none can. None: nothing grew.
    headline  the first sentence of text.
    leaking   kernel -> stock's fault in words, of the kernels that could help on this torch.
    state_of  kernel -> (state, reason).
    """
    number = "driver" if session.first.outside is None else "outside"
    grew = getattr(session.last, number) - getattr(session.first, number)
    found = {"number": number, "grew_by": grew, "nodes": [], "node": None, "kernel": None, "can_stop": None}
    growers = sorted((node for node in session.nodes.values() if node.growth[number] >= ENOUGH),
                     key=lambda node: -node.growth[number])
    growers = [node for node in growers if node.growth[number] >= BESIDE * growers[0].growth[number]]
    between = session.between[number]
    if not growers and between < ENOUGH:
        return _told(found, f"{number.capitalize()} memory did not grow in this prompt.")
    if not growers or between > growers[0].growth[number]:
        return _told(found, f"{number.capitalize()} memory grew by {size(between)} between nodes, in none of them.",
                     f"{_NONE}.", can_stop=False)
    found |= {"nodes": [node.node_id for node in growers], "node": growers[0].node_id}
    headline = _headline(number, growers, name_of)
    inside = "in it" if len(growers) == 1 else "in them"
    for kernel, fault in leaking.items():
        taken, passed = _calls(growers, kernel)
        if passed:
            reason = _left_to_stock(kernel, taken, passed, inside, fault, *state_of(kernel))
            return _told(found, headline, reason, kernel=kernel, can_stop=True)
    return _told(found, headline, _why_none(growers, inside, leaking), can_stop=False)


_NONE = "No kernel of this pack can stop that"


def _told(found, *sentences, **more):
    return {**found, **more, "headline": sentences[0], "text": " ".join(sentences)}


def _headline(number, growers, name_of):
    first, *others = growers
    text = f"{name_of(first.node_id)} made {number} grow by {size(first.growth[number])}"
    if first.overlapped:
        text += f" (or {', '.join(map(name_of, sorted(first.overlapped)))}, which ran at the same time)"
    named = [f"{name_of(node.node_id)} by {size(node.growth[number])}" for node in others[:2]]
    more = [f"{len(others) - 2} more nodes by less"] if len(others) > 2 else []
    return ", ".join([text, *named, *more]) + "."


def _calls(nodes, kernel):
    counts = [node.kernels.get(kernel, (0, 0)) for node in nodes]
    return sum(taken for taken, _ in counts), sum(passed for _, passed in counts)


def _left_to_stock(kernel, taken, passed, inside, fault, state, reason):
    calls = f"{passed:,} {kernel} call{'' if passed == 1 else 's'} {inside} ran in torch's own kernel ({fault})"
    ours = f"; {taken:,} ran in this pack's" if taken else ""
    if state in ("failed", "unavailable"):
        return f"{calls}{ours}. This pack's {kernel} kernel would stop that, but it is {state}: {reason.rstrip('.')}."
    return (f"{calls}{ours}. This pack's {kernel} kernel keeps nothing: set {kernel} to on (with a Metal Kernels "
            f"Switch upstream of the node, or by METAL_KERNELS={kernel}=on). What is kept already stays until ComfyUI "
            "is restarted.")


def _why_none(nodes, inside, leaking):
    because = []
    for kernel in leaking:
        taken, _ = _calls(nodes, kernel)
        because.append(f"all {taken:,} {kernel} calls {inside} ran in this pack's kernel already" if taken else
                       f"there was no {kernel} call {inside}")
    return f"{_NONE}{': ' if because else ''}{', and '.join(because)}."


def out_of_memory(message):
    """The numbers in torch's own message, {"reserved", "outside", "limit"} as it wrote them; None for another one.
    The limit is None where torch was told to have none.

    Its "MPS allocated" is the allocator's pool and its "other allocations" is driver - pool (MPSAllocator.mm), so that
    torch before 2.13, which has no call for either, tells them here.
    """
    found = _OOM.search(message or "")
    return dict(zip(("reserved", "outside", "limit"), found.groups(), strict=True)) if found else None
