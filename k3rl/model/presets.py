"""Named model shapes. `preset("nano")` is a ModelConfig; `.with_vocabulary(n)` fits it to a tokenizer."""

from __future__ import annotations

from collections.abc import Callable

from k3rl.errors import ConfigError
from k3rl.model.config import DsaConfig, KdaConfig, MlaConfig, ModelConfig, MoeConfig

K3_TOKENS = {"bos_token": 163_584, "eos_token": 163_586, "pad_token": 163_839, "media_token": 163_605}


def preset(name: str) -> ModelConfig:
    """The config called `name`, a key of PRESETS. ConfigError lists the names."""
    if name not in PRESETS:
        raise ConfigError(f"model preset {name!r} is unknown: choose from {', '.join(PRESETS)}")
    return PRESETS[name]()


def nano() -> ModelConfig:
    """About a million parameters, K3's blocks in four layers: trains on a CPU core in minutes."""
    return ModelConfig(
        vocab_size=1536,
        hidden_size=128,
        num_layers=4,
        full_attention=(1, 3),
        intermediate_size=256,
        kda=KdaConfig(num_heads=2, head_dim=32),
        mla=MlaConfig(num_heads=2, q_lora_rank=96, kv_lora_rank=96, nope_dim=32, rope_dim=16, v_dim=32),
        dsa=DsaConfig(num_heads=2, head_dim=32, top_k=64),
        moe=MoeConfig(
            num_experts=8,
            experts_per_token=2,
            num_shared_experts=1,
            expert_dim=64,
            latent_dim=64,
            expert_format="mxfp4",
        ),
        residual_block=2,
        initializer_range=None,
    )


def mini() -> ModelConfig:
    """1.3B parameters, 0.36B active, K3's blocks and pattern in 17 layers over its vocabulary: trains on one GPU."""
    return ModelConfig(
        vocab_size=163_840,
        hidden_size=1024,
        num_layers=17,
        full_attention=(3, 7, 11, 15, 16),
        intermediate_size=4096,
        kda=KdaConfig(num_heads=8, head_dim=128),
        mla=MlaConfig(num_heads=8, q_lora_rank=512, kv_lora_rank=256, nope_dim=128, rope_dim=64, v_dim=128),
        dsa=DsaConfig(num_heads=8, head_dim=128, top_k=2048),
        moe=MoeConfig(
            num_experts=64,
            experts_per_token=4,
            num_shared_experts=1,
            expert_dim=512,
            latent_dim=512,
            expert_format="mxfp4",
        ),
        residual_block=4,
        **K3_TOKENS,
    )


def kimi_linear_48b_a3b() -> ModelConfig:
    """Kimi-Linear-48B-A3B: KDA with the softplus gate and MLA, SwiGLU experts, the plain residual stream, no indexer
    (its public config.json)."""
    return ModelConfig(
        vocab_size=163_840,
        hidden_size=2304,
        num_layers=27,
        full_attention=(3, 7, 11, 15, 19, 23, 26),
        intermediate_size=9216,
        kda=KdaConfig(num_heads=32, head_dim=128, gate_lower_bound=None, full_rank_gate=False),
        mla=MlaConfig(num_heads=32, kv_lora_rank=512, nope_dim=128, rope_dim=64, v_dim=128, output_gate=False),
        moe=MoeConfig(
            num_experts=256,
            experts_per_token=8,
            num_shared_experts=1,
            expert_dim=1024,
            latent_dim=None,
            scaling=2.446,
        ),
        residual_block=None,
        activation="silu",
        bos_token=163_584,
        eos_token=163_586,
        pad_token=163_839,
    )


def k3() -> ModelConfig:
    """Kimi K3 with gated sparse attention: 2.78T parameters, 104B active (text model)."""
    return ModelConfig(
        vocab_size=163_840,
        hidden_size=7168,
        num_layers=93,
        full_attention=(*range(3, 92, 4), 92),
        intermediate_size=33_792,
        kda=KdaConfig(num_heads=96, head_dim=128),
        mla=MlaConfig(num_heads=96, q_lora_rank=1536, kv_lora_rank=512, nope_dim=128, rope_dim=64, v_dim=128),
        dsa=DsaConfig(num_heads=32, head_dim=128, top_k=2048),
        moe=MoeConfig(
            num_experts=896,
            experts_per_token=16,
            num_shared_experts=2,
            expert_dim=3072,
            latent_dim=3584,
            expert_format="mxfp4",
        ),
        residual_block=12,
        **K3_TOKENS,
    )


PRESETS: dict[str, Callable[[], ModelConfig]] = {
    "nano": nano,
    "mini": mini,
    "kimi_linear_48b_a3b": kimi_linear_48b_a3b,
    "k3": k3,
}
