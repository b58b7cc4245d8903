"""transformers' Kimi Linear as a peer: a model of the shape of ours, and its tensors under our public names."""

from __future__ import annotations

import torch
import transformers

from k3rl.model import ModelConfig


def their_model(config: ModelConfig) -> transformers.PreTrainedModel:
    """transformers' model of the same shape, freshly initialised."""
    kda, mla, moe = config.kda, config.mla, config.moe
    layers = range(config.num_layers)
    return transformers.KimiLinearForCausalLM(
        transformers.KimiLinearConfig(
            vocab_size=config.vocab_size,
            hidden_size=config.hidden_size,
            intermediate_size=config.intermediate_size,
            moe_intermediate_size=moe.expert_dim,
            num_hidden_layers=config.num_layers,
            num_attention_heads=mla.num_heads,
            num_key_value_heads=mla.num_heads,
            num_shared_experts=moe.num_shared_experts,
            kv_lora_rank=mla.kv_lora_rank,
            q_lora_rank=mla.q_lora_rank,
            qk_rope_head_dim=mla.rope_dim,
            qk_nope_head_dim=mla.nope_dim,
            v_head_dim=mla.v_dim,
            num_experts=moe.num_experts,
            num_experts_per_token=moe.experts_per_token,
            routed_scaling_factor=moe.scaling,
            linear_head_dim=kda.head_dim,
            linear_num_heads=kda.num_heads,
            mlp_layer_types=["dense" if i < moe.first_dense_layers else "sparse" for i in layers],
            layer_types=["full_attention" if i in config.full_attention else "linear_attention" for i in layers],
            pad_token_id=None,
            bos_token_id=1,
            eos_token_id=2,
            attn_implementation="eager",
        )
    )


def public_name(name: str) -> str:
    """Our public name of one of their tensors that exists one to one."""
    if ".mlp." in name and ".layers.0." not in name:
        name = name.replace(".mlp.", ".block_sparse_moe.")
    return "language_model." + name.replace("forget_gate.", "")


def public(state: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Their tensors (or gradients) under our public names: fused convolutions and stacked experts taken apart."""
    result = {}
    for name, value in state.items():
        if name.endswith("conv1d.weight"):
            for part, rows in zip("qkv", value.chunk(3), strict=True):
                result[public_name(name).replace("conv1d", f"{part}_conv1d")] = rows
        elif name.endswith("experts.gate_up_proj"):
            for e, (gate, up) in enumerate(pair.chunk(2) for pair in value):
                stem = public_name(name).replace("gate_up_proj", str(e))
                result |= {f"{stem}.w1.weight": gate, f"{stem}.w3.weight": up}
        elif name.endswith("experts.down_proj"):
            for e, down in enumerate(value):
                result[f"{public_name(name).replace('down_proj', str(e))}.w2.weight"] = down
        else:
            result[public_name(name)] = value.flatten() if name.endswith("A_log") else value
    return result
