"""FP8 models in ComfyUI: the kernels in comfy-kitchen's seams, and the nodes that load and save such models."""
