"""Shape and constants of a model: frozen, validated at construction, read from and written as a public `config.json`.

Layers are 0-based everywhere in code; the public files list full-attention layers 1-indexed, and only
`from_public` and `to_public` know that.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

from k3rl.errors import ConfigError
from k3rl.kernels.mxfp4 import BLOCK

ExpertFormat = Literal["plain", "mxfp4"]


@dataclass(frozen=True, kw_only=True)
class KdaConfig:
    """Kimi Delta Attention. `gate_lower_bound` None means the unbounded softplus gate of Kimi Linear."""

    num_heads: int
    head_dim: int
    conv_kernel: int = 4
    gate_lower_bound: float | None = -5.0
    full_rank_gate: bool = True

    @property
    def width(self) -> int:
        return self.num_heads * self.head_dim


@dataclass(frozen=True, kw_only=True)
class MlaConfig:
    """Multi-head latent attention without rotary positions. `q_lora_rank` None: queries read the input itself."""

    num_heads: int
    kv_lora_rank: int
    nope_dim: int
    rope_dim: int
    v_dim: int
    q_lora_rank: int | None = None
    output_gate: bool = True

    @property
    def qk_dim(self) -> int:
        return self.nope_dim + self.rope_dim


@dataclass(frozen=True, kw_only=True)
class DsaConfig:
    """The sparse-attention indexer of every full-attention layer."""

    num_heads: int
    head_dim: int
    top_k: int


@dataclass(frozen=True, kw_only=True)
class MoeConfig:
    """Routed experts. `latent_dim` None: experts read the hidden vector itself and no latent pair or norm exists."""

    num_experts: int
    experts_per_token: int
    num_shared_experts: int
    expert_dim: int
    latent_dim: int | None
    first_dense_layers: int = 1
    renormalize: bool = True
    scaling: float = 1.0
    expert_format: ExpertFormat = "plain"


@dataclass(frozen=True, kw_only=True)
class ModelConfig:
    """A whole language model: `preset("nano")`, or `ModelConfig.from_public(json.load(...))`.

    `full_attention` holds the 0-based layers with MLA (and the indexer, if `dsa` is set); all others are KDA.
    `residual_block` is the block size of attention residuals; None is the plain residual stream.
    """

    vocab_size: int
    hidden_size: int
    num_layers: int
    full_attention: tuple[int, ...]
    intermediate_size: int
    kda: KdaConfig
    mla: MlaConfig
    moe: MoeConfig
    dsa: DsaConfig | None = None
    residual_block: int | None = 12
    activation: Literal["situ", "silu"] = "situ"
    situ_beta: float = 4.0
    situ_linear_beta: float = 25.0
    rms_norm_eps: float = 1e-5
    initializer_range: float | None = 0.02  # None: by fan-in, which small models need
    max_positions: int = 1_048_576
    bos_token: int | None = None
    eos_token: int | None = None
    pad_token: int | None = None
    media_token: int | None = None

    def __post_init__(self) -> None:
        if not self.full_attention or not all(0 <= layer < self.num_layers for layer in self.full_attention):
            raise ConfigError(f"full-attention layers {self.full_attention} do not fit {self.num_layers} layers")
        moe = self.moe
        if not 0 < moe.experts_per_token <= moe.num_experts:
            raise ConfigError(f"cannot choose {moe.experts_per_token} of {moe.num_experts} experts")
        if moe.expert_format == "mxfp4" and (self.expert_input % BLOCK or moe.expert_dim % BLOCK):
            raise ConfigError(
                f"MXFP4 needs expert inputs in blocks of {BLOCK}: latent {self.expert_input} and expert width "
                f"{moe.expert_dim} must be multiples"
            )
        if self.kda.gate_lower_bound is not None and not -5.0 <= self.kda.gate_lower_bound < 0:
            raise ConfigError(
                f"gate_lower_bound {self.kda.gate_lower_bound} is outside [-5, 0): a 16-token tile would leave fp32"
            )

    @property
    def expert_input(self) -> int:
        """Width that routed experts read and write."""
        return self.hidden_size if self.moe.latent_dim is None else self.moe.latent_dim

    @property
    def moe_layers(self) -> tuple[int, ...]:
        return tuple(range(self.moe.first_dense_layers, self.num_layers))

    @property
    def dsa_layers(self) -> tuple[int, ...]:
        return self.full_attention if self.dsa is not None else ()

    def with_vocabulary(self, vocab_size: int, **tokens: int) -> ModelConfig:
        """The same model over another tokenizer; `tokens` are bos_token, eos_token, pad_token, media_token."""
        return replace(self, vocab_size=vocab_size, **tokens)  # type: ignore[arg-type]

    @staticmethod
    def from_public(public: Mapping[str, Any]) -> ModelConfig:
        """Read a public `config.json`: K3's (with `text_config`) or Kimi Linear's. ConfigError if it cannot run."""
        return _from_public(public)

    def to_public(self) -> dict[str, Any]:
        """The `config.json` that `from_public` reads back to an equal config."""
        return _to_public(self)


def _refuse_unsupported(text: Mapping[str, Any]) -> None:
    """Refuse settings that would silently compute something else."""
    wanted = {
        "num_expert_group": 1,
        "topk_group": 1,
        "moe_layer_freq": 1,
        "moe_router_activation_func": "sigmoid",
        "mla_use_nope": True,
        "tie_word_embeddings": False,
        "num_nextn_predict_layers": 0,
    }
    for key, value in wanted.items():
        if text.get(key, value) != value:
            raise ConfigError(f"config: {key} = {text[key]!r} is not supported (only {value!r})")
    remainder = (text.get("dsa_config") or {}).get("remainder", "none")
    if remainder != "none":
        raise ConfigError(f"config: dsa_config.remainder = {remainder!r} is not supported (only 'none')")


def _from_public(public: Mapping[str, Any]) -> ModelConfig:
    text = public.get("text_config", public)
    if text.get("model_type") != "kimi_linear":
        raise ConfigError(f"config: model_type {public.get('model_type')!r} is not a Kimi K3 or Kimi Linear model")
    _refuse_unsupported(text)
    try:
        return _read(public, text)
    except KeyError as missing:
        raise ConfigError(f"config: {missing.args[0]!r} is missing") from missing


def _read(public: Mapping[str, Any], text: Mapping[str, Any]) -> ModelConfig:
    linear = text["linear_attn_config"]
    dsa = text.get("dsa_config")
    quantization = text.get("quantization_config") or public.get("quantization_config") or {}
    full = tuple(layer - 1 for layer in linear["full_attn_layers"])
    if dsa is not None and tuple(layer - 1 for layer in dsa["layers"]) != full:
        raise ConfigError(f"config: dsa_config.layers {dsa['layers']} differ from the full-attention layers")
    return ModelConfig(
        vocab_size=text["vocab_size"],
        hidden_size=text["hidden_size"],
        num_layers=text["num_hidden_layers"],
        full_attention=full,
        intermediate_size=text["intermediate_size"],
        kda=KdaConfig(
            num_heads=linear["num_heads"],
            head_dim=linear["head_dim"],
            conv_kernel=linear["short_conv_kernel_size"],
            gate_lower_bound=linear.get("gate_lower_bound"),
            full_rank_gate=linear.get("use_full_rank_gate", False),
        ),
        mla=MlaConfig(
            num_heads=text["num_attention_heads"],
            kv_lora_rank=text["kv_lora_rank"],
            nope_dim=text["qk_nope_head_dim"],
            rope_dim=text["qk_rope_head_dim"],
            v_dim=text["v_head_dim"],
            q_lora_rank=text.get("q_lora_rank"),
            output_gate=text.get("mla_use_output_gate", False),
        ),
        moe=MoeConfig(
            num_experts=text["num_experts"],
            experts_per_token=text.get("num_experts_per_token") or text["num_experts_per_tok"],
            num_shared_experts=text["num_shared_experts"],
            expert_dim=text["moe_intermediate_size"],
            latent_dim=text.get("routed_expert_hidden_size"),
            first_dense_layers=text["first_k_dense_replace"],
            renormalize=text.get("moe_renormalize", True),
            scaling=text.get("routed_scaling_factor", 1.0),
            expert_format="mxfp4" if quantization.get("format") == "mxfp4-pack-quantized" else "plain",
        ),
        dsa=None
        if dsa is None
        else DsaConfig(num_heads=dsa["index_n_heads"], head_dim=dsa["index_head_dim"], top_k=dsa["index_topk"]),
        residual_block=text.get("attn_res_block_size"),
        activation=_activation(text),
        situ_beta=text.get("activation_situ_beta", 4.0),
        situ_linear_beta=text.get("activation_situ_linear_beta", 25.0),
        rms_norm_eps=text["rms_norm_eps"],
        initializer_range=text.get("initializer_range", 0.02),
        max_positions=text.get("max_position_embeddings") or text.get("model_max_length", 1_048_576),
        bos_token=text.get("bos_token_id"),
        eos_token=text.get("eos_token_id"),
        pad_token=text.get("pad_token_id"),
        media_token=public.get("media_placeholder_token_id"),
    )


def _activation(text: Mapping[str, Any]) -> Literal["situ", "silu"]:
    match text["hidden_act"]:
        case "situ":
            return "situ"
        case "silu" | "swish":
            return "silu"
        case other:
            raise ConfigError(f"config: hidden_act {other!r} is not supported (situ or silu)")


def _to_public(config: ModelConfig) -> dict[str, Any]:
    kda = config.kda
    full = [layer + 1 for layer in config.full_attention]
    text: dict[str, Any] = {
        "model_type": "kimi_linear",
        "architectures": ["KimiLinearForCausalLM"],
        "vocab_size": config.vocab_size,
        "hidden_size": config.hidden_size,
        "num_hidden_layers": config.num_layers,
        "intermediate_size": config.intermediate_size,
        "linear_attn_config": {
            "full_attn_layers": full,
            "kda_layers": [layer + 1 for layer in range(config.num_layers) if layer not in config.full_attention],
            "num_heads": kda.num_heads,
            "head_dim": kda.head_dim,
            "short_conv_kernel_size": kda.conv_kernel,
            "gate_lower_bound": kda.gate_lower_bound,
            "use_full_rank_gate": kda.full_rank_gate,
        },
        **_attention_fields(config.mla),
        **_expert_fields(config.moe),
        "hidden_act": config.activation,
        "activation_situ_beta": config.situ_beta,
        "activation_situ_linear_beta": config.situ_linear_beta,
        "attn_res_block_size": config.residual_block,
        "rms_norm_eps": config.rms_norm_eps,
        "initializer_range": config.initializer_range,
        "max_position_embeddings": config.max_positions,
        "bos_token_id": config.bos_token,
        "eos_token_id": config.eos_token,
        "pad_token_id": config.pad_token,
        "tie_word_embeddings": False,
    }
    if config.dsa is not None:
        text["dsa_config"] = {
            "index_n_heads": config.dsa.num_heads,
            "index_head_dim": config.dsa.head_dim,
            "index_topk": config.dsa.top_k,
            "layers": full,
            "remainder": "none",
        }
    if config.moe.expert_format == "mxfp4":
        text["quantization_config"] = _QUANTIZATION
    return {
        "architectures": ["KimiK3ForConditionalGeneration"],
        "model_type": "kimi_k3",
        "media_placeholder_token_id": config.media_token,
        "text_config": text,
        "tie_word_embeddings": False,
    }


def _attention_fields(mla: MlaConfig) -> dict[str, Any]:
    return {
        "num_attention_heads": mla.num_heads,
        "num_key_value_heads": mla.num_heads,
        "kv_lora_rank": mla.kv_lora_rank,
        "q_lora_rank": mla.q_lora_rank,
        "qk_nope_head_dim": mla.nope_dim,
        "qk_rope_head_dim": mla.rope_dim,
        "v_head_dim": mla.v_dim,
        "mla_use_nope": True,
        "mla_use_output_gate": mla.output_gate,
    }


def _expert_fields(moe: MoeConfig) -> dict[str, Any]:
    return {
        "num_experts": moe.num_experts,
        "num_experts_per_token": moe.experts_per_token,
        "num_shared_experts": moe.num_shared_experts,
        "moe_intermediate_size": moe.expert_dim,
        "routed_expert_hidden_size": moe.latent_dim,
        "latent_moe_use_norm": moe.latent_dim is not None,
        "first_k_dense_replace": moe.first_dense_layers,
        "moe_layer_freq": 1,
        "moe_renormalize": moe.renormalize,
        "moe_router_activation_func": "sigmoid",
        "routed_scaling_factor": moe.scaling,
        "num_expert_group": 1,
        "topk_group": 1,
    }


_QUANTIZATION = {
    "quant_method": "compressed-tensors",
    "format": "mxfp4-pack-quantized",
    "quantization_status": "compressed",
    "config_groups": {
        "group_0": {
            "format": "mxfp4-pack-quantized",
            "targets": ["Linear"],
            "weights": {
                "type": "float",
                "num_bits": 4,
                "strategy": "group",
                "group_size": BLOCK,
                "symmetric": True,
            },
        }
    },
}
