"""As much of ComfyUI's own package as listing the pack's nodes needs; tests put the rest into sys.modules."""
