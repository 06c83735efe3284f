"""A thin stand-in for ComfyUI's `comfy_api`: just what this pack's nodes use, with ComfyUI's names and signatures.

`make test-comfyui` runs the same nodes in a real ComfyUI, so that the two can't drift apart unseen.
"""
