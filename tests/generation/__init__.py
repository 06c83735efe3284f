"""transformers' mixture-of-experts models, tiny and with random weights, and what one generation with them counted.

Nothing is downloaded: configurations are made here, weights are drawn from a seed.
"""

from __future__ import annotations

import copy
import dataclasses
import sys
import time
from collections import Counter
from collections.abc import Callable
from contextlib import contextmanager

import torch

EXPERTS = "metal_grouped_mm"
"""The name under which the README tells users to register transformers' grouped_mm."""

_TINY = {
    "vocab_size": 256, "hidden_size": 64, "intermediate_size": 96, "moe_intermediate_size": 32, "num_experts": 8,
    "num_experts_per_tok": 2, "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 256,
    "initializer_range": 0.5, "bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0,
}  # fmt: skip
_LARGER = {
    **_TINY, "vocab_size": 1024, "hidden_size": 256, "intermediate_size": 384, "moe_intermediate_size": 128,
    "num_experts": 32, "initializer_range": 0.1,
}  # fmt: skip


def qwen3_moe(larger: bool = False) -> torch.nn.Module:
    """Qwen3MoeForCausalLM on the CPU: attention and experts in each of 2 layers; 8 experts top-2, or 32 top-8."""
    from transformers import Qwen3MoeConfig, Qwen3MoeForCausalLM

    sizes = {**_LARGER, "num_experts_per_tok": 8} if larger else _TINY
    config = Qwen3MoeConfig(**sizes, num_hidden_layers=2, head_dim=16, norm_topk_prob=True, decoder_sparse_step=1)
    return _random(Qwen3MoeForCausalLM, config)


def lfm2_moe(larger: bool = False) -> torch.nn.Module:
    """Lfm2MoeForCausalLM on the CPU: a dense convolution layer, then attention and convolution with experts."""
    from transformers import Lfm2MoeConfig, Lfm2MoeForCausalLM

    sizes = {**_LARGER, "num_experts_per_tok": 4} if larger else _TINY
    kinds = ["conv", "full_attention", "conv"]
    config = Lfm2MoeConfig(**sizes, num_hidden_layers=len(kinds), num_dense_layers=1, layer_types=kinds)
    model = _random(Lfm2MoeForCausalLM, config)
    generator = torch.Generator().manual_seed(1)
    for name, buffer in model.named_buffers():
        if name.endswith("expert_bias"):  # zero in a fresh model: it would not change any choice
            buffer.copy_(torch.randn(buffer.shape, generator=generator) / 8)
    return model


MODELS = {"Qwen3-MoE": qwen3_moe, "LFM2-MoE": lfm2_moe}


def _random(kind: type, config) -> torch.nn.Module:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return kind(config).eval()


def expert_layers(model: torch.nn.Module) -> int:
    return sum(name.endswith(".experts") for name, _ in model.named_modules())


def prompt(model: torch.nn.Module, batch: int = 1, length: int = 7) -> torch.Tensor:
    generator = torch.Generator().manual_seed(2)
    return torch.randint(3, model.config.vocab_size, (batch, length), generator=generator)


def use_grouped_mm(model: torch.nn.Module) -> None:
    """What the README tells users to do, so that decoding reaches _grouped_mm as well."""
    from transformers.integrations.moe import ALL_EXPERTS_FUNCTIONS

    ALL_EXPERTS_FUNCTIONS.register(EXPERTS, ALL_EXPERTS_FUNCTIONS["grouped_mm"])
    model.set_experts_implementation(EXPERTS)


@dataclasses.dataclass
class Meter:
    """Inside our kernels' own functions, self-checks left out: calls by op, host copies and waits, and seconds."""

    calls: Counter = dataclasses.field(default_factory=Counter)
    host_copies: int = 0
    synchronizations: int = 0
    seconds: Counter = dataclasses.field(default_factory=Counter)  # processor time by op, of the calling thread

    def wrap(self, op: str, run: Callable) -> Callable:
        def metered(*args, **kwargs):
            copies, waits = waited()
            begin = time.thread_time()
            result = run(*args, **kwargs)
            self.seconds[op] += time.thread_time() - begin
            self.calls[op] += 1
            copies_after, waits_after = waited()
            self.host_copies += copies_after - copies
            self.synchronizations += waits_after - waits
            return result

        return metered

    def reset(self) -> None:
        self.calls.clear()
        self.seconds.clear()
        self.host_copies = self.synchronizations = 0


def waited() -> tuple[int, int]:
    """(copies to the host, waits for the device) so far; zeros on a Mac, which does not count them."""
    if sys.platform == "darwin":
        return 0, 0
    from softmetal import counters

    return counters.host_copies(), counters.synchronizations()


@contextmanager
def metered_kernels(metal_kernels, installation_type: type):
    """All kernels of the pack installed with a Meter round each op: yields (installation, meter)."""
    meter = Meter()
    kernels = [
        dataclasses.replace(
            kernel, patches=tuple(dataclasses.replace(p, run=meter.wrap(p.op, p.run)) for p in kernel.patches)
        )
        for kernel in metal_kernels.KERNELS
    ]
    metal_kernels.uninstall()
    installation = installation_type(kernels)
    installation.install()
    try:
        yield installation, meter
    finally:
        installation.uninstall()


@dataclasses.dataclass
class Generation:
    """tokens [batch, prompt + new], on the CPU. The decode loop makes all new tokens but the first: its steps, and the
    seconds that all of them took together."""

    tokens: torch.Tensor
    steps: int
    wall: float
    processor: float


def generate(model: torch.nn.Module, ids: torch.Tensor, tokens: int = 32) -> Generation:
    """Greedy, exactly `tokens` new ones. The times are from the first token's logits to the last token's."""
    from transformers import LogitsProcessor, LogitsProcessorList

    wall, processor = [], []

    class Clock(LogitsProcessor):
        def __call__(self, input_ids, scores):
            wall.append(time.perf_counter())
            processor.append(time.process_time())
            return scores

    with torch.inference_mode():
        out = model.generate(
            ids.to(model.device), attention_mask=torch.ones_like(ids).to(model.device), max_new_tokens=tokens,
            min_new_tokens=tokens, do_sample=False, logits_processor=LogitsProcessorList([Clock()]),
        )  # fmt: skip
    return Generation(out.cpu(), len(wall) - 1, wall[-1] - wall[0], processor[-1] - processor[0])


def on_mps(model: torch.nn.Module) -> torch.nn.Module:
    """A copy there; the original stays the CPU's."""
    return copy.deepcopy(model).to("mps")
