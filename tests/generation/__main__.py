"""python -m generation: what greedy decoding with transformers' mixture-of-experts models takes on this device.

The decode loop's rate and the time inside single operations are two tables: most of the loop is transformers, torch's
dispatcher and stock operations. `make generate` runs it.
"""

from __future__ import annotations

import argparse
import importlib
import os
import sys

os.environ["HF_HUB_OFFLINE"] = "1"

import torch  # noqa: E402

import generation  # noqa: E402


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m generation", description=__doc__.split("\n")[0])
    parser.add_argument("--faults", default="2.13", help="whose stock the software device imitates (default 2.13)")
    parser.add_argument("--tokens", type=int, default=32, help="new tokens, at least 2 (default 32)")
    parser.add_argument("--larger", action="store_true", help="hidden size 256 and 32 experts, not 64 and 8")
    options = parser.parse_args(arguments)
    if options.tokens < 2:
        parser.error("--tokens must be at least 2: the first one is the prompt's")
    if sys.platform != "darwin":
        import softmetal

        softmetal.activate(faults=options.faults)
    from pack import load

    face = load().metal_kernels
    installation = importlib.import_module(f"{face.__name__}.installation").Installation
    with generation.metered_kernels(face, installation) as (installed, meter):
        environment = installed.environment
        print(f"device {environment.device}, torch {environment.torch}, float32, processor time of one thread")
        for name, make in generation.MODELS.items():
            _report(name, make(options.larger), installed, meter, options.tokens)
    return 0


def _report(name: str, model: torch.nn.Module, installed, meter: generation.Meter, tokens: int) -> None:
    config, ids = model.config, generation.prompt(model)
    expected = generation.generate(model, ids, tokens).tokens
    print(
        f"\n{name}: {generation.expert_layers(model)} layers of {config.num_experts} experts, top "
        f"{config.num_experts_per_tok}, hidden {config.hidden_size}; {tokens - 1} decode steps after a prompt of "
        f"{ids.shape[1]}"
    )
    here = generation.on_mps(model)
    print(f"  {'decode loop':<34}{'tokens/s':>10}  tokens as the CPU's")
    for title, mode, decoding in (
        ("stock, batched_mm (transformers')", "off", False),
        ("stock, grouped_mm", "off", True),
        ("this pack, grouped_mm", "auto", True),
    ):
        installed.set_mode(mode)
        if decoding:
            generation.use_grouped_mm(here)
        else:
            here.set_experts_implementation("grouped_mm")  # generate() decodes with batched_mm
        generation.generate(here, ids, 2)  # compiles and checks what is used first
        meter.reset()
        made = generation.generate(here, ids, tokens)
        same = "yes" if torch.equal(made.tokens, expected) else "NO"
        print(f"  {title:<34}{made.steps / made.processor:>10.1f}  {same}")
    print(f"  {'operation, in all of the last run':<34}{'calls':>10}{'ms a call':>12}")
    for op, seconds in meter.seconds.most_common():
        print(f"  {op:<34}{meter.calls[op]:>10}{seconds / meter.calls[op] * 1e3:>12.3f}")
    print(f"  copies to the host and waits inside these: {meter.host_copies + meter.synchronizations}")


if __name__ == "__main__":
    sys.exit(main())
