"""The pack's Metal kernels on a real GPU, an NVIDIA one: are they right, free of races, and how fast.

    python -m gpu.build OUT     here: PTX of every kernel, and what the pack launches for each case (needs no GPU)
    python -m gpu.run OUT       there: needs torch, numpy and an NVIDIA GPU; of this repository tests/gpu, and for the
                                conformance table metal_kernels
    python -m gpu.report RUN    here: RESULTS.md from the run's JSON; with --plan OUT it says whether all was compared

`build --peers MLX --peers-torch PYTORCH` puts the peers' own Metal kernels beside ours (peers/). Four tables: speed,
large and small (cases.py), and the conformance table (conformance.py). `run --do launch` is what the sanitizer runs:

    compute-sanitizer --tool racecheck python -m gpu.run OUT --do launch

It stands in for an Apple GPU where that is fair: SIMD-groups of 32, coalescing, occupancy, bytes moved. It says nothing
of Apple's caches or matrix units.
"""
