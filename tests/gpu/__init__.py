"""The pack's Metal kernels on a real GPU, an NVIDIA one: are they right, free of races, and how fast.

    python -m gpu.build OUT     here: PTX of every kernel, and what the pack launches for each case (needs no GPU)
    python -m gpu.run OUT       there: needs torch, numpy and an NVIDIA GPU, and nothing else of this repository
    python -m gpu.report        here: RESULTS.md from the run's JSON

It stands in for an Apple GPU where that is fair: SIMD-groups of 32, coalescing, occupancy, bytes moved. It says nothing
of Apple's caches or matrix units.
"""
