"""FP8 models in ComfyUI: the kernels in comfy-kitchen's seams (`kitchen`), and nodes that load and save such models.

header -> mapped (a file, checked, without reading it) -> layers (which weights are quantised, and how) -> plan (what
becomes of each tensor) -> state (the state dict that ComfyUI's own loaders take) -> load, report. `save` and `writer`
go the other way; `quantize` serves both.
"""
