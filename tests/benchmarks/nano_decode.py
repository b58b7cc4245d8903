"""Decode speed against transformers' kimi_linear of the same shape: `python tests/benchmarks/nano_decode.py`.

Both hold the same weights, of nano's widths with Kimi Linear's blocks (transformers has no K3), in fp32 on the same
threads, and feed the same tokens, one step per slot; their logits are compared first. Nano itself (K3's blocks, MXFP4
experts, the indexer) is timed beside them. The last line is JSON: `ratio` is ours against transformers in tokens per
second at the largest batch; `ratios` by batch.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import torch
from timing import interleaved, machine
from torch import Tensor

from k3rl.model import Model, ModelConfig, preset
from k3rl.model.tensors import write_tensors

sys.path.append(str(Path(__file__).parents[1] / "support"))
from kimi_linear import public, their_model

PROMPT = 64


def main() -> None:
    """Compare, time and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--batches", type=int, nargs="+", default=[1, 8, 32])
    parser.add_argument("--steps", type=int, default=64, help="timed steps of a round, after a prompt of 64 tokens")
    parser.add_argument("--rounds", type=int, default=5)
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    torch.manual_seed(0)
    config = kimi_linear_of_nano()
    theirs, ours, nano = their_model(config).eval(), Model(config), Model(preset("nano"))
    write_tensors(ours, public(theirs.state_dict()), source="transformers")
    print(f"largest difference of logits: {difference(ours, theirs):.1e}")
    print("tokens/s   batch     ours  transformers  ours / transformers     nano (K3)")
    ratios = {}
    for batch in arguments.batches:
        tokens = torch.randint(3, config.vocab_size, (batch, PROMPT + arguments.steps))
        models = {
            "ours": ours_steps(ours, tokens),
            "theirs": their_steps(theirs, tokens),
            "nano": ours_steps(nano, tokens),
        }
        seconds = decode_seconds(models, arguments.rounds)
        rate = {name: batch * arguments.steps / s for name, s in seconds.items()}
        ratios[batch] = rate["ours"] / rate["theirs"]
        print(
            f"{batch:16} {rate['ours']:8.0f} {rate['theirs']:13.0f} {ratios[batch]:20.1f} {rate['nano']:13.0f}",
            flush=True,
        )
    print(json.dumps({"ratio": ratios[max(ratios)], "ratios": ratios, **machine()}))


def kimi_linear_of_nano() -> ModelConfig:
    """Nano's widths and pattern with what Kimi Linear has of its blocks: an unbounded gate of low rank, no query
    latent, no output gate of MLA, no indexer, no latent experts, SwiGLU, the plain residual stream, plain weights."""
    nano = preset("nano")
    return replace(
        nano,
        kda=replace(nano.kda, gate_lower_bound=None, full_rank_gate=False),
        mla=replace(nano.mla, q_lora_rank=None, output_gate=False),
        dsa=None,
        moe=replace(nano.moe, latent_dim=None, expert_format="plain"),
        residual_block=None,
        activation="silu",
    )


Steps = tuple[Callable[[], None], Callable[[], None]]  # reading the prompt, then decoding


def ours_steps(model: Model, tokens: Tensor) -> Steps:
    """Each slot its prompt, then token by token."""
    slots = torch.arange(len(tokens))
    state = {}

    def start() -> None:
        state["cache"] = cache = model.new_cache(slots=len(tokens), max_context=tokens.shape[1])
        model.decode(tokens[:, :PROMPT].flatten(), cache, slots.repeat_interleave(PROMPT))

    def decode() -> None:
        for column in tokens[:, PROMPT:].unbind(1):
            model.decode(column, state["cache"], slots)

    return start, decode


def their_steps(model, tokens: Tensor) -> Steps:
    """The same through transformers' cache."""
    state = {}

    def start() -> None:
        state["cache"] = model(tokens[:, :PROMPT], use_cache=True, logits_to_keep=1).cache

    def decode() -> None:
        cache = state["cache"]
        for column in tokens[:, PROMPT:].split(1, dim=1):
            cache = model(column, cache=cache, use_cache=True, logits_to_keep=1).cache

    return start, decode


def decode_seconds(models: dict[str, Steps], rounds: int) -> dict[str, float]:
    """Median seconds of decoding alone: prompts are read before each round's clock starts."""
    cases = {}
    for name, (start, decode) in models.items():
        cases |= {f"{name} start": start, name: decode}
    seconds = interleaved(cases, rounds=rounds)
    return {name: seconds[name] for name in models}


def difference(ours: Model, theirs) -> float:
    """Largest difference of the two models' logits over a few tokens, decoded."""
    tokens = torch.randint(3, ours.config.vocab_size, (2, 40))
    cache = ours.new_cache(slots=2, max_context=64)
    slots = torch.tensor([0, 1])
    logits = torch.stack([ours.decode(column, cache, slots).logits for column in tokens.unbind(1)], dim=1)
    return (logits - theirs(tokens).logits).abs().max().item()


if __name__ == "__main__":
    with torch.inference_mode():
        main()
