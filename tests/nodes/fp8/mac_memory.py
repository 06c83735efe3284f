"""README's table of FP8 models by a Mac's memory: python tests/nodes/fp8/mac_memory.py prints it.

Computed, not measured. An FP8 file has a byte a weight, and so has the loaded model (at most 1.05 times the file: tests
in tests/comfyui hold that); the weights are counted from the published configurations (tests/comfyui/model_sizes.py
counts them in ComfyUI's own classes). The peak, from load to the first sampler step, is the bar of another test
there: less than the file and 1 GiB, without what the size of a picture or a video adds.
"""
GIB = 2**30
ABOVE = GIB  # of the peak over the file

# (name, weights, published where). Wan 2.2 has two models of Wan 2.1's size, and ComfyUI keeps both.
MODELS = (
    ("Z-Image", 6_154_908_736, "Tongyi-MAI/Z-Image-Turbo"),
    ("Flux.1 dev", 11_901_408_320, "black-forest-labs/FLUX.1-dev"),
    ("Wan 2.1 14B", 14_288_491_584, "Wan-AI/Wan2.1-T2V-14B"),
    ("Qwen-Image", 20_430_401_088, "Qwen/Qwen-Image"),
    ("Wan 2.2 A14B, both models", 2 * 14_288_491_584, "Wan-AI/Wan2.2-T2V-A14B"),
)
MEMORIES = (16, 24, 32, 64)  # GiB
BEGIN, END = "<!-- fp8-memory -->", "<!-- /fp8-memory -->"


def recommended(memory):
    """Metal's recommended maximum for a Mac with this memory, in bytes: two thirds, three quarters above 36 GiB."""
    return memory * 3 // 4 if memory > 36 * GIB else memory * 2 // 3


def verdict(peak, memory):
    """fits: within what Metal recommends. swaps: within the Mac's memory, so that macOS and its programs give way."""
    if peak <= recommended(memory):
        return "fits"
    return "swaps" if peak <= memory else "does not fit"


def table():
    """The lines between README's two marks."""
    rows = ["| FP8 file | file | resident | peak | " + " | ".join(f"{memory} GB" for memory in MEMORIES) + " |",
            "|---|---|---|---|" + "---|" * len(MEMORIES)]  # fmt: skip
    for name, weights, source in MODELS:
        peak = weights + ABOVE
        cells = [f"[{name}](https://huggingface.co/{source})", *(f"{size / GIB:.1f} GiB" for size in
                                                                 (weights, weights, peak))]  # fmt: skip
        rows.append("| " + " | ".join(cells + [verdict(peak, memory * GIB) for memory in MEMORIES]) + " |")
    return "\n".join(rows)


if __name__ == "__main__":
    print(table())
