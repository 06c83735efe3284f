"""What a VAE's parity report adds to the comparison: what ran, where, how long, and what it was expected to need."""
from dataclasses import dataclass

from . import estimate, kernels_used, plan
from .report import decibels


@dataclass(frozen=True)
class Facts:
    """One run, as `vae.parity` knows it at its end.

    where            the device side's device and dtype.
    rough, expected  seconds that the CPU side was thought to take, before the device side (None: unknown) and after it.
    """

    request: object
    source: object
    job: object
    need: object
    where: str
    device: object
    cpu: object
    rough: float | None
    expected: float
    kernels: dict


def describe(facts, stages):
    """The report's text: the last stage's comparison, then the run."""
    request, count = facts.request, len(facts.job.places)
    parts = "whole" if request.region == plan.WHOLE else f"{request.region} of at most {request.size} pixels"
    if request.region == plan.TILES:
        parts = f"{count} {parts}"
    lines = [stages[-1].text, f"  operation: {request.operation} of {facts.source.describe()}, {parts}"]
    for step, stage in zip(facts.job.steps[:-1], stages[:-1], strict=True):
        numbers = stage.metrics
        lines.append(f"  after '{step}' alone: PSNR {decibels(numbers.psnr)}, max abs error {numbers.max_abs:.6g}")
    took = [estimate.duration(seconds) for seconds in (facts.device.seconds, facts.cpu.seconds, facts.expected)]
    lines += [
        f"  device side: {facts.where}, {took[0]}; {kernels_used.describe(facts.kernels)}",
        f"  CPU side: cpu float32, {took[1]} (estimated {took[2]})",
        f"  {facts.need.describe()}",
    ]
    if facts.where.startswith("cpu"):
        lines.append("  This VAE runs on the CPU here: no other device was checked.")
    return "\n".join(lines)


def as_dict(facts, stages):
    """The JSON's data: the last stage's, and `vae` with the run and every stage."""
    return {
        **stages[-1].data,
        "vae": {
            "operation": facts.request.operation,
            "region": facts.request.region,
            "size": facts.request.size,
            "frames": facts.request.frames,
            "windows": len(facts.job.places),
            "input": facts.source.describe(),
            "stages": [{"step": step, **stage.data} for step, stage in zip(facts.job.steps, stages, strict=True)],
            "device": facts.where,
            "device_seconds": facts.device.seconds,
            "cpu_seconds": facts.cpu.seconds,
            "cpu_seconds_estimated": facts.expected,
            "cpu_seconds_estimated_first": facts.rough,
            "flops": facts.device.work.flops,
            "cpu_bytes_estimated": {
                "weights": facts.need.weights,
                "activations": facts.need.activations,
                "results": facts.need.results,
            },
            "cpu_bytes_available": facts.need.available,
            "kernels": facts.kernels,
        },
    }
