"""Metal Kernels: the ComfyUI entry."""
