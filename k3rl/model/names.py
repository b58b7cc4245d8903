"""Public tensor names and where each one lives in the model: the one table that loading, saving and publishing share.

Several public tensors are rows of one parameter here (q, k and v are one product), and experts are stacked.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from k3rl.model.config import ModelConfig


@dataclass(frozen=True)
class Slot:
    """One public tensor: `name`, the model's state-dict key it lives under, its index in a stack of experts (or None),
    its rows there (None: all), its public shape, and whether it is a routed expert's weight (stored packed in MXFP4
    models) and always stored in fp32."""

    name: str
    key: str
    shape: tuple[int, ...]
    rows: tuple[int, int] | None = None
    expert: int | None = None
    fp32: bool = False

    @property
    def routed(self) -> bool:
        return self.expert is not None


def slots(config: ModelConfig) -> Iterator[Slot]:
    """Every public tensor of the model, in file order."""
    prefix = "language_model."
    hidden = config.hidden_size
    yield Slot(f"{prefix}model.embed_tokens.weight", "embed", (config.vocab_size, hidden))
    for index in range(config.num_layers):
        yield from _layer(config, index, f"{prefix}model.layers.{index}.", f"layers.{index}.")
    yield Slot(f"{prefix}model.norm.weight", "norm", (hidden,))
    if config.residual_block is not None:
        yield from _mix(f"{prefix}model.output_attn_res", "output_mix", hidden)
    yield Slot(f"{prefix}lm_head.weight", "lm_head", (config.vocab_size, hidden))


def _mix(name: str, key: str, hidden: int) -> Iterator[Slot]:
    yield Slot(f"{name}_norm.weight", f"{key}.norm", (hidden,))
    yield Slot(f"{name}_proj.weight", f"{key}.proj", (1, hidden))


def _layer(config: ModelConfig, index: int, name: str, key: str) -> Iterator[Slot]:
    hidden = config.hidden_size
    yield Slot(f"{name}input_layernorm.weight", f"{key}attention_norm", (hidden,))
    yield Slot(f"{name}post_attention_layernorm.weight", f"{key}feed_forward_norm", (hidden,))
    if config.residual_block is not None:
        yield from _mix(f"{name}self_attention_res", f"{key}attention_mix", hidden)
        yield from _mix(f"{name}mlp_res", f"{key}feed_forward_mix", hidden)
    attention = _mla if index in config.full_attention else _kda
    yield from attention(config, f"{name}self_attn.", f"{key}attention.")
    if index in config.moe_layers:
        yield from _moe(config, f"{name}block_sparse_moe.", f"{key}feed_forward.")
    else:
        width = config.intermediate_size
        key = f"{key}feed_forward."
        yield from _stack(f"{key}gate_up", hidden, ((f"{name}mlp.gate_proj", width), (f"{name}mlp.up_proj", width)))
        yield Slot(f"{name}mlp.down_proj.weight", f"{key}down", (hidden, width))


def _stack(key: str, columns: int, parts: tuple[tuple[str, int], ...], expert: int | None = None) -> Iterator[Slot]:
    """Public matrices that lie under one another in one parameter."""
    start = 0
    for name, rows in parts:
        yield Slot(f"{name}.weight", key, (rows, columns), rows=(start, start + rows), expert=expert)
        start += rows


def _kda(config: ModelConfig, name: str, key: str) -> Iterator[Slot]:
    kda, hidden = config.kda, config.hidden_size
    width, rank = kda.width, kda.head_dim
    gate = (f"{name}g_proj", width) if kda.full_rank_gate else (f"{name}g_a_proj", rank)
    parts = [(f"{name}{p}_proj", width) for p in "qkv"]
    parts += [(f"{name}f_a_proj", rank), (f"{name}b_proj", kda.num_heads), gate]
    yield from _stack(f"{key}in_proj", hidden, tuple(parts))
    for i, p in enumerate("qkv"):
        rows = (i * width, (i + 1) * width)
        yield Slot(f"{name}{p}_conv1d.weight", f"{key}conv", (width, 1, kda.conv_kernel), rows=rows, fp32=True)
    yield Slot(f"{name}f_b_proj.weight", f"{key}f_b", (width, rank))
    if not kda.full_rank_gate:
        yield Slot(f"{name}g_b_proj.weight", f"{key}g_b", (width, rank))
    yield Slot(f"{name}A_log", f"{key}a_log", (kda.num_heads,), fp32=True)
    yield Slot(f"{name}dt_bias", f"{key}dt_bias", (width,), fp32=True)
    yield Slot(f"{name}o_norm.weight", f"{key}o_norm", (rank,), fp32=True)
    yield Slot(f"{name}o_proj.weight", f"{key}o_proj", (hidden, width))


def _mla(config: ModelConfig, name: str, key: str) -> Iterator[Slot]:
    mla, hidden, h = config.mla, config.hidden_size, config.mla.num_heads
    query = (f"{name}q_proj", h * mla.qk_dim) if mla.q_lora_rank is None else (f"{name}q_a_proj", mla.q_lora_rank)
    parts = [query, (f"{name}kv_a_proj_with_mqa", mla.kv_lora_rank + mla.rope_dim)]
    if mla.output_gate:
        parts.append((f"{name}g_proj", h * mla.v_dim))
    yield from _stack(f"{key}in_proj", hidden, tuple(parts))
    if mla.q_lora_rank is not None:
        yield Slot(f"{name}q_a_layernorm.weight", f"{key}q_norm", (mla.q_lora_rank,))
        yield Slot(f"{name}q_b_proj.weight", f"{key}q_b", (h * mla.qk_dim, mla.q_lora_rank))
    yield Slot(f"{name}kv_a_layernorm.weight", f"{key}kv_norm", (mla.kv_lora_rank,))
    yield Slot(f"{name}kv_b_proj.weight", f"{key}kv_b", (h * (mla.nope_dim + mla.v_dim), mla.kv_lora_rank))
    yield Slot(f"{name}o_proj.weight", f"{key}o_proj", (hidden, h * mla.v_dim))
    if config.dsa is not None:
        dsa, name, key = config.dsa, f"{name}indexer.", f"{key}indexer."
        yield Slot(f"{name}wq_b.weight", f"{key}wq_b", (dsa.num_heads * dsa.head_dim, mla.q_lora_rank or hidden))
        parts = [(f"{name}wk", dsa.head_dim), (f"{name}weights_proj", dsa.num_heads)]
        yield from _stack(f"{key}in_proj", hidden, tuple(parts))
        yield Slot(f"{name}k_norm.weight", f"{key}k_norm", (dsa.head_dim,))
        yield Slot(f"{name}k_norm.bias", f"{key}k_bias", (dsa.head_dim,))


def _moe(config: ModelConfig, name: str, key: str) -> Iterator[Slot]:
    moe, hidden, entry = config.moe, config.hidden_size, config.expert_input
    shared = moe.num_shared_experts * moe.expert_dim
    yield Slot(f"{name}gate.weight", f"{key}router", (moe.num_experts, hidden))
    yield Slot(f"{name}gate.e_score_correction_bias", f"{key}bias", (moe.num_experts,), fp32=True)
    parts = [(f"{name}shared_experts.{p}_proj", shared) for p in ("gate", "up")]
    if moe.latent_dim is not None:
        parts.append((f"{name}routed_expert_down_proj", moe.latent_dim))
    yield from _stack(f"{key}in_proj", hidden, tuple(parts))
    yield Slot(f"{name}shared_experts.down_proj.weight", f"{key}shared_down", (hidden, shared))
    if moe.latent_dim is not None:
        yield Slot(f"{name}routed_expert_norm.weight", f"{key}latent_norm", (entry,))
        yield Slot(f"{name}routed_expert_up_proj.weight", f"{key}latent_up", (hidden, entry))
    for e in range(moe.num_experts):
        public = f"{name}experts.{e}."
        width = moe.expert_dim
        yield from _stack(f"{key}experts.w13", entry, ((f"{public}w1", width), (f"{public}w3", width)), expert=e)
        yield Slot(f"{public}w2.weight", f"{key}experts.w2", (entry, width), expert=e)
