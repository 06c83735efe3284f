"""What the status node shows: the library's own status, and what went wrong while the pack was loaded."""
from .. import execution, library
from ..fp8 import kitchen, others, stock
from ..memory import out_of_memory
from ..switch.state import conflicts

SWITCH_OFF = "To switch everything off, start ComfyUI with METAL_KERNELS=off; for one kernel, METAL_KERNELS=pad=off."


def collect():
    """JSON-serialisable: `problem` (a sentence, or None), `hooks` (why prompts can't be followed, or None), `conflicts`
    (nodes of this prompt whose switches disagree), `kitchen` (what is ours in comfy-kitchen), `others` (where other
    packs' functions stand), `loaders` (why files are not checked in ComfyUI's own), `out_of_memory` (why it can't be
    recognised, or None) beside what `metal_kernels.status()` says. Never raises.
    """
    problem, found = library.problem, {}
    if library.metal_kernels is not None:
        try:
            found = library.metal_kernels.status()
        except Exception as error:
            problem = problem or f"the kernels' status can't be read: {type(error).__name__}: {error}"
    return {"problem": problem, "hooks": execution.problem(), "conflicts": conflicts(),
            "kitchen": kitchen.report(), "others": others.held(), "loaders": stock.problems(),
            "out_of_memory": out_of_memory.problem(), **found}


def held_ops(report):
    """The aten ops that another pack answers for instead of a kernel."""
    return {op for kernel in report.get("kernels", {}).values() for op in kernel.get("held", ())}


def as_text(report):
    """The report as lines for the person at the graph."""
    lines = [report["text"]] if report.get("text") else []
    if report["problem"]:
        lines.insert(0, f"Metal Kernels does nothing here: {report['problem']}")
    if report.get("hooks"):
        lines.append(f"  Note: Metal Kernels Switch can't switch anything here: {report['hooks']}.")
    lines += [f"  Note: {line}" for line in kitchen.notes(report.get("kitchen"))]
    lines += [f"  Note: {line}" for line in others.notes(held_ops(report))]
    lines += [f"  Note: {line}." for line in report.get("loaders", ())]
    if report.get("out_of_memory"):
        lines.append(f"  Note: Running out of memory on MPS is not recognised here: {report['out_of_memory']}.")
    lines += [f"  Note: {conflict['text']}" for conflict in report.get("conflicts", ())]
    if any(kernel["state"] == "patched" for kernel in report.get("kernels", {}).values()):
        lines.append(SWITCH_OFF)
    return "\n".join(lines)
