"""Parameter counts of a config, from its table of public tensors: nothing is allocated."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

from k3rl.model.config import ModelConfig
from k3rl.model.names import slots

INDEXER = ".indexer."
ROUTED = ".experts."


@dataclass(frozen=True, kw_only=True)
class Sizes:
    """Counts of parameters: all; those one token multiplies by (the head counts, the embedding table does not); and by
    part: embedding, head, kda, mla, indexer, dense, routed (one entry for all experts), shared, router, latent,
    norms."""

    total: int
    active: int
    parts: dict[str, int]


def sizes(config: ModelConfig) -> Sizes:
    """Count a model's parameters. Router biases are state, not parameters, and are left out."""
    parts = dict.fromkeys(
        ("embedding", "head", "kda", "mla", "indexer", "dense", "routed", "shared", "router", "latent", "norms"), 0
    )
    for slot in slots(config):
        if not slot.name.endswith("e_score_correction_bias"):
            parts[_part(slot.name, config)] += prod(slot.shape)
    total = sum(parts.values())
    idle = parts["routed"] * (config.moe.num_experts - config.moe.experts_per_token) // config.moe.num_experts
    return Sizes(total=total, active=total - parts["embedding"] - idle, parts=parts)


def _part(name: str, config: ModelConfig) -> str:
    for mark, part in (
        ("embed_tokens", "embedding"),
        ("lm_head", "head"),
        (INDEXER, "indexer"),
        (ROUTED, "routed"),
        ("shared_experts", "shared"),
        (".gate.weight", "router"),
        ("routed_expert_", "latent"),
        (".mlp.", "dense"),
    ):
        if mark in name:
            return part
    if ".self_attn." in name:
        layer = int(name.split(".layers.")[1].split(".")[0])
        return "mla" if layer in config.full_attention else "kda"
    return "norms"
