"""Decoding in C++ (k3rl.kernels.cpu): the model's weights as panels, and one call per step.

A token costs only itself, and its result depends on nothing else in the batch.
Legend: n tokens, P rows whose logits are wanted, V vocabulary, M MoE layers, K experts per token, D sparse-attention
layers, S selected positions.
"""

from __future__ import annotations

import ctypes
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from k3rl.kernels.cpu import PackedPanels, Panels, library, structs
from k3rl.kernels.mxfp4 import dequantize
from k3rl.model.kda import Kda, KdaMemory
from k3rl.model.mla import Mla, MlaMemory
from k3rl.model.moe import DenseFeedForward, Experts, LatentMoe
from k3rl.model.transformer import Layer, Mix, Transformer

if TYPE_CHECKING:
    from k3rl.model.decode import Cache

NO_LINEAR = structs.Linear(None, 0, 0)
KEY_TILE = 16  # positions whose index keys stand together (mla.h)
MAX_SOURCES = 64  # of an attention residual (decode.cpp)


def cpu_decoder(model: Transformer) -> CpuDecoder | None:
    """The model laid out for the C++ step; None where torch has to decode it (no compiler, a GPU, another dtype)."""
    weight = model.embed
    blocks = model.config.residual_block
    if weight.device.type != "cpu" or weight.dtype != torch.float32:
        return None
    if blocks is not None and model.config.num_layers // blocks + 2 > MAX_SOURCES:
        return None
    if model.config.kda.conv_kernel < 2:  # the step keeps at least one past input
        return None
    return CpuDecoder(model) if library() is not None else None


class CpuDecoder:
    """A copy of the model's matrices in `panels` and `packed`, by state name; vectors and the embedding are read where
    the model holds them."""

    def __init__(self, model: Transformer) -> None:
        self.panels: dict[str, Panels] = {}
        self.packed: dict[str, PackedPanels] = {}
        self._keep: list[Any] = []  # everything the structs point to
        config = model.config
        self.shape = (config.vocab_size, len(config.moe_layers), config.moe.experts_per_token)
        self.selected = (len(config.dsa_layers), config.dsa.top_k if config.dsa is not None else 0)
        layers = [self._layer(f"layers.{i}", layer) for i, layer in enumerate(model.layers)]
        self._model = structs.Model(
            layers=self._pointer(structs.structs_array(structs.Layer, layers)),
            embed=self._values(model.embed),
            norm=self._values(model.norm),
            mix=self._mix(model.output_mix),
            head=self._linear("lm_head", model.lm_head),
            layer_count=len(layers),
            hidden=config.hidden_size,
            moe_layers=self.shape[1],
            chosen=self.shape[2],
            sparse_layers=self.selected[0],
            top_k=self.selected[1],
            eps=config.rms_norm_eps,
        )

    def step(
        self, tokens: Tensor, cache: Cache, slots: Tensor, positions: Tensor, logits_at: Tensor, sparse: bool
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Feed tokens int64 [n] to `positions` [n] of `slots` [n] of the cache, tokens of one slot side by side and in
        order; lengths are left to the caller. Logits [P, V] of the rows `logits_at` [P] (ascending), experts int64
        [n, M, K], selected int64 [n, D, S]."""
        tokens, slots, positions, logits_at = (t.contiguous() for t in (tokens, slots, positions, logits_at))
        count, wanted = len(slots), len(logits_at)
        logits = torch.empty(wanted, self.shape[0])
        experts = torch.empty(count, *self.shape[1:], dtype=torch.int64)
        selected = torch.empty(count, *self.selected, dtype=torch.int64)
        native = library()
        assert native is not None
        native.k3rl_decode(
            ctypes.byref(self._model),
            cache.memories,
            *(ctypes.c_void_p(t.data_ptr()) for t in (tokens, slots, positions)),
            count,
            ctypes.c_void_p(logits_at.data_ptr()),
            wanted,
            int(sparse),
            torch.get_num_threads(),
            *(ctypes.c_void_p(t.data_ptr()) for t in (logits, experts, selected)),
        )
        return logits, experts, selected

    def working(self) -> dict[str, Tensor]:
        """State names to the matrices that `step` multiplies by, read back from their panels."""
        state = {name: panels.weight() for name, panels in self.panels.items()}
        state.update((name, dequantize(*panels.bytes())) for name, panels in self.packed.items())
        for name in [name for name in state if name.endswith(".w_uk")]:
            owner = name.removesuffix(".w_uk")
            up = torch.cat((state.pop(name).mT, state.pop(f"{owner}.w_uv")), dim=1)
            state[f"{owner}.kv_b"] = up.flatten(0, 1)
        return state

    def _layer(self, name: str, layer: nn.Module) -> structs.Layer:
        assert isinstance(layer, Layer)
        attention, block = layer.attention, layer.feed_forward
        is_kda = isinstance(attention, Kda)
        mixer = self._kda(f"{name}.attention", attention) if is_kda else self._mla(f"{name}.attention", attention)
        feed = f"{name}.feed_forward"
        return structs.Layer(
            **{"kda" if is_kda else "mla": self._pointer(mixer)},
            feed_forward=self._moe(feed, block) if isinstance(block, LatentMoe) else self._dense(feed, block),
            attention_norm=self._values(layer.attention_norm),
            feed_forward_norm=self._values(layer.feed_forward_norm),
            attention_mix=self._mix(layer.attention_mix),
            feed_forward_mix=self._mix(layer.feed_forward_mix),
            appends=layer.appends,
        )

    def _kda(self, name: str, kda: Kda) -> structs.Kda:
        bound = kda.kda.gate_lower_bound
        return structs.Kda(
            in_proj=self._linear(f"{name}.in_proj", kda.in_proj),
            f_b=self._linear(f"{name}.f_b", kda.f_b),
            g_b=NO_LINEAR if kda.g_b is None else self._linear(f"{name}.g_b", kda.g_b),
            o_proj=self._linear(f"{name}.o_proj", kda.o_proj),
            conv=self._values(kda.conv),
            a_log=self._values(kda.a_log),
            dt_bias=self._values(kda.dt_bias),
            o_norm=self._values(kda.o_norm),
            heads=kda.kda.num_heads,
            head_dim=kda.kda.head_dim,
            kernel=kda.kda.conv_kernel,
            bounded=bound is not None,
            lower_bound=bound or 0.0,
        )

    def _mla(self, name: str, mla: Mla) -> structs.Mla:
        shape, indexer = mla.mla, mla.indexer
        up = mla.kv_b.detach().unflatten(0, (shape.num_heads, -1))
        w_uk = self._stack(f"{name}.w_uk", up[:, : shape.nope_dim].mT)
        w_uv = self._stack(f"{name}.w_uv", up[:, shape.nope_dim :])
        index = (
            {"index_q": NO_LINEAR, "index_in": NO_LINEAR}
            if indexer is None
            else {
                "index_q": self._linear(f"{name}.indexer.wq_b", indexer.wq_b),
                "index_in": self._linear(f"{name}.indexer.in_proj", indexer.in_proj),
                "k_norm": self._values(indexer.k_norm),
                "k_bias": self._values(indexer.k_bias),
                "index_heads": indexer.num_heads,
                "index_dim": indexer.head_dim,
                "top_k": indexer.top_k,
            }
        )
        return structs.Mla(
            in_proj=self._linear(f"{name}.in_proj", mla.in_proj),
            q_b=NO_LINEAR if mla.q_b is None else self._linear(f"{name}.q_b", mla.q_b),
            o_proj=self._linear(f"{name}.o_proj", mla.o_proj),
            w_uk=w_uk,
            w_uv=w_uv,
            q_norm=self._values(mla.q_norm),
            kv_norm=self._values(mla.kv_norm),
            heads=shape.num_heads,
            rank=shape.kv_lora_rank,
            query_rank=mla.rows[0],
            nope=shape.nope_dim,
            rope=shape.rope_dim,
            value=shape.v_dim,
            gated=shape.output_gate,
            scale=mla.scale,
            **index,
        )

    def _moe(self, name: str, moe: LatentMoe) -> structs.FeedForward:
        return structs.FeedForward(
            router=self._linear(f"{name}.router", moe.router),
            gate_up=self._linear(f"{name}.in_proj", moe.in_proj),
            down=self._linear(f"{name}.shared_down", moe.shared_down),
            latent_up=NO_LINEAR if moe.latent_up is None else self._linear(f"{name}.latent_up", moe.latent_up),
            **self._experts(f"{name}.experts", moe.experts),
            bias=self._values(moe.bias),
            latent_norm=self._values(moe.latent_norm),
            experts=moe.moe.num_experts,
            chosen=moe.moe.experts_per_token,
            width=moe.moe.expert_dim,
            shared=moe.rows[0] // 2,
            latent=moe.rows[1],
            renormalize=moe.moe.renormalize,
            scaling=moe.moe.scaling,
            glu=_glu(moe),
        )

    def _experts(self, name: str, experts: Experts) -> dict[str, int]:
        """The fields of both stacks: packed where the forward multiplies by MXFP4 values."""
        if not experts.qat:
            return {part: self._stack(f"{name}.{part}", getattr(experts, part)) for part in ("w13", "w2")}
        fields = {}
        for part in ("w13", "w2"):
            panels = self.packed[f"{name}.{part}"] = PackedPanels(*experts.bytes(part, name))
            fields[f"packed_{part}"] = self._pointer(structs.packed(panels))
        return fields

    def _dense(self, name: str, block: DenseFeedForward) -> structs.FeedForward:
        return structs.FeedForward(
            router=NO_LINEAR,
            gate_up=self._linear(f"{name}.gate_up", block.gate_up),
            down=self._linear(f"{name}.down", block.down),
            latent_up=NO_LINEAR,
            glu=_glu(block),
        )

    def _mix(self, mix: Mix | None) -> structs.Mix:
        return structs.Mix(None, None) if mix is None else structs.Mix(self._values(mix.norm), self._values(mix.proj))

    def _linear(self, name: str, weight: Tensor) -> structs.Linear:
        self.panels[name] = Panels(weight)
        return structs.linear(self.panels[name])

    def _stack(self, name: str, weights: Tensor) -> int:
        self.panels[name] = Panels(weights)
        return self._pointer(structs.linears(self.panels[name]))

    def _values(self, tensor: Tensor | None) -> int | None:
        if tensor is None:
            return None
        self._keep.append(tensor)
        return structs.address(tensor)

    def _pointer(self, made: Any) -> int:
        self._keep.append(made)
        return ctypes.addressof(made)


def to_tiles(keys: Tensor) -> Tensor:
    """Index keys [T, d] as the step reads them: 16 positions at a time transposed, [T rounded up to 16, d]."""
    padded = nn.functional.pad(keys, (0, 0, 0, -len(keys) % KEY_TILE))
    return padded.unflatten(0, (-1, KEY_TILE)).mT.reshape(padded.shape)


def from_tiles(tiles: Tensor, length: int) -> Tensor:
    """The first `length` keys [length, d], a copy, of tiles [T, d]."""
    whole = tiles[: -(-length // KEY_TILE) * KEY_TILE]
    return whole.view(-1, tiles.shape[1], KEY_TILE).mT.flatten(0, 1)[:length].clone()


def memories(layers: list[KdaMemory | MlaMemory]) -> Any:
    """The memory structs of a cache's layers."""
    return structs.structs_array(structs.Memory, [_memory(layer) for layer in layers])


def _memory(layer: KdaMemory | MlaMemory) -> structs.Memory:
    if isinstance(layer, KdaMemory):
        return structs.Memory(state=layer.state.data_ptr(), inputs=layer.inputs.data_ptr())
    keys = None if layer.index_keys is None else layer.index_keys.data_ptr()
    return structs.Memory(latents=layer.latents.data_ptr(), index_keys=keys, places=layer.latents.shape[1])


def _glu(block: LatentMoe | DenseFeedForward) -> structs.Glu:
    betas = block.glu.keywords
    return structs.Glu(bool(betas), betas.get("beta", 0.0), betas.get("linear_beta", 0.0))
