"""A miniature of ComfyUI's executor: the seams that the pack hooks, under ComfyUI's names."""
