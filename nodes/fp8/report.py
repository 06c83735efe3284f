"""What a load or a save did, in words."""
from ..memory.units import size
from . import found, memory
from .plan import AS_STORED, CAST


def loaded(result, where=None):
    """The text for a `load.Loaded`. where: the device that the text encoder runs on."""
    sources = result.sources
    disk, held = sum(source.header.size for source in sources), memory.resident(result.modules)
    names = " + ".join(source.header.name for source in sources)
    text = [f"{names}: {result.kind}"]
    text.append(f"  on disk   {size(disk)} ({disk:,} bytes)")
    text.append(f"  resident  {size(held)} ({held:,} bytes), {held / disk:.3f} of the file")
    counts = found.formats(result.modules)
    text.append("  layers    " + ", ".join(f"{count} {name}" for name, count in counts.items()))
    if where is not None:
        text.append(f"  runs on   {where}")
    text += [f"  {line}" for line in _notes(result)]
    if result.warning:
        text.append(f"  Warning: {result.warning}")
    return "\n".join(text)


def saved(result):
    """The text for a `save.Saved`."""
    text = [result.path]
    text.append(f"  on disk   {size(result.size)} ({result.size:,} bytes)")
    text.append("  weights   " + ", ".join(f"{count} {name}" for name, count in result.layers.items()))
    if result.requantized:
        text.append(f"  {len(result.requantized)} layers had a scale for each row and have one now, which every "
                    f"ComfyUI reads: {_some(result.requantized)}")  # fmt: skip
    if result.kept_rows:
        text.append(f"  {len(result.kept_rows)} layers keep a scale for each row, as a pattern asks, which ComfyUI's "
                    f"CUDA kernels don't read: {_some(result.kept_rows)}")  # fmt: skip
    text += [f"  {line}" for line in _unused(result.unused)]
    return "\n".join(text)


def _notes(result):
    for source in result.sources:
        plan, options = source.plan, result.options
        done = len(plan.quantized) - len(source.failed)
        if options.quantize != AS_STORED:
            yield (f"quantised on load: {done} layers to {options.format}, {options.quantize}; {len(plan.left_alone)} "
                   "left alone by the patterns")  # fmt: skip
        yield from _unused(plan.unused)
        if source.failed:
            yield f"{len(source.failed)} layers hold NaN or infinity and are not quantised: {_some(source.failed)}"
        if source.lost:
            yield f"{len(source.lost)} layers are no place for FP8 in ComfyUI and are bfloat16: {_some(source.lost)}"
        cast = [source.header.entries[step.source] for step in plan.steps if step.action == CAST]
        wide = [f"{entry.name} {entry.shape}" for entry in cast if len(entry.shape) > 2]
        if wide:
            yield f"{len(wide)} FP8 weights are no matrices and are held in bfloat16: {_some(wide)}"


def _unused(patterns):
    if patterns:
        yield f"no layer is named by {'the pattern' if len(patterns) == 1 else 'the patterns'} {_some(patterns)}"


def _some(names):
    return ", ".join(names[:3]) + (" and more" if len(names) > 3 else "")
