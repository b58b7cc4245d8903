"""Gated multi-head latent attention with its sparse-attention indexer.

Training and prefill expand the latents to keys and values; decoding works on the latents themselves (absorbed form).
Legend: N packed tokens, B sequences or slots, L padded length, T cached positions, h heads, S selected positions.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn.functional import linear

from k3rl.kernels.sparse_attention import attend, attend_blocks, attend_latent, select, selection_mask
from k3rl.model.config import MlaConfig, ModelConfig
from k3rl.model.functional import rms_norm
from k3rl.model.indexer import Indexer
from k3rl.model.layout import Layout

LATENT_EPS = 1e-6


@dataclass
class MlaMemory:
    """What a full-attention layer remembers: latents [B, T, kv_lora_rank + rope_dim] (normed c, then raw r) and the
    indexer's keys [B, T, index head_dim] (None without an indexer)."""

    latents: Tensor
    index_keys: Tensor | None

    def first(self, rows: int) -> MlaMemory:
        """The first rows, sharing memory."""
        return MlaMemory(self.latents[:rows], None if self.index_keys is None else self.index_keys[:rows])


@dataclass
class Attended:
    """What a full-attention layer computed: outputs [N, H]; selected int64 [N, S] (None without an indexer);
    `memory` and the taps `index_scores` [B, L, L] and `indexer_loss` where asked for."""

    outputs: Tensor
    selected: Tensor | None = None
    own_selected: Tensor | None = None
    memory: MlaMemory | None = None
    index_scores: Tensor | None = None
    indexer_loss: Tensor | None = None


class Mla(nn.Module):
    """in_proj rows: q_a (or q, without a query latent), kv latent, r, then the output gate."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        mla: MlaConfig = config.mla
        self.mla, self.eps = mla, config.rms_norm_eps
        hidden, h = config.hidden_size, mla.num_heads
        gate_rows = h * mla.v_dim if mla.output_gate else 0
        query_rows = h * mla.qk_dim if mla.q_lora_rank is None else mla.q_lora_rank
        self.rows = (query_rows, mla.kv_lora_rank, mla.rope_dim, gate_rows)
        self.in_proj = nn.Parameter(torch.empty(sum(self.rows), hidden))
        self.q_norm = self.q_b = None
        if mla.q_lora_rank is not None:
            self.q_norm = nn.Parameter(torch.empty(mla.q_lora_rank))
            self.q_b = nn.Parameter(torch.empty(h * mla.qk_dim, mla.q_lora_rank))
        self.kv_norm = nn.Parameter(torch.empty(mla.kv_lora_rank))
        self.kv_b = nn.Parameter(torch.empty(h * (mla.nope_dim + mla.v_dim), mla.kv_lora_rank))
        self.o_proj = nn.Parameter(torch.empty(hidden, h * mla.v_dim))
        self.indexer = None if config.dsa is None else Indexer(config)
        self.scale = mla.qk_dim**-0.5

    def _project(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
        """x [N, H] to the query latent (x itself where there is none), queries [N, h, qk], normed c, r, gate logits."""
        q, c, r, g = linear(x, self.in_proj).split(self.rows, dim=-1)
        latent = x
        if self.q_norm is not None and self.q_b is not None:
            latent = rms_norm(q, self.q_norm, LATENT_EPS)
            q = linear(latent, self.q_b)
        return latent, q.unflatten(-1, (self.mla.num_heads, -1)), rms_norm(c, self.kv_norm, LATENT_EPS), r, g

    def forward(
        self,
        x: Tensor,
        layout: Layout,
        *,
        sparse: bool = True,
        replay: Tensor | None = None,
        remember: bool = False,
        want: frozenset[str] = frozenset(),
    ) -> Attended:
        """x [N, H]; `replay` int64 [N, S] are positions to read instead of choosing; `sparse` False reads all."""
        latent, q, c, r, g = self._project(x)
        h, mla = self.mla.num_heads, self.mla
        kv = linear(c, self.kv_b).unflatten(-1, (h, -1))
        keys = torch.cat((kv[..., : mla.nope_dim], r.unsqueeze(1).expand(-1, h, -1)), dim=-1)
        q, keys, values = (layout.pad(t).transpose(1, 2) for t in (q, keys, kv[..., mla.nope_dim :]))
        result = Attended(outputs=x)
        allowed = None
        if self.indexer is not None:
            allowed = self._select(
                self.indexer, x, latent, layout, sparse=sparse, replay=replay, want=want, into=result
            )
        if self.indexer is not None and "indexer_loss" in want:
            causal = layout.causal if allowed is None else allowed
            outputs, mass = attend(q, keys, values, causal, self.scale)
            result.indexer_loss = self.indexer.loss(result.index_scores, mass.detach().mean(dim=1), causal, layout)
        else:
            outputs = attend_blocks(q, keys, values, allowed, self.scale)
        result.outputs = self._output(layout.unpad(outputs.transpose(1, 2)).flatten(1), g)
        if remember:
            index_keys = None if self.indexer is None else layout.pad(self.indexer.keys(x)[0])
            result.memory = MlaMemory(layout.pad(torch.cat((c, r), dim=-1)), index_keys)
        return result

    def _select(
        self,
        indexer: Indexer,
        x: Tensor,
        latent: Tensor,
        layout: Layout,
        *,
        sparse: bool,
        replay: Tensor | None,
        want: frozenset[str],
        into: Attended,
    ) -> Tensor | None:
        """Which positions each place of the padded view reads, bool [B, L, L] (None: every causal one); what the
        indexer found goes `into` the result. The indexer reads detached inputs: only its own loss trains it."""
        sparse = sparse and layout.length > indexer.top_k
        choosing = sparse and (replay is None or "choices" in want)
        if choosing or want & {"index_scores", "indexer_loss"}:
            into.index_scores = indexer(x.detach(), latent.detach(), layout)
        own = x.new_full((x.shape[0], indexer.top_k), -1, dtype=torch.int64)
        if choosing:
            assert into.index_scores is not None
            chosen = layout.unpad(select(into.index_scores.detach(), layout.causal, indexer.top_k))
            own = chosen.masked_fill((layout.positions < indexer.top_k).unsqueeze(-1), -1)
        into.selected = own if replay is None else replay
        into.own_selected = own if "choices" in want else None
        return selection_mask(layout.pad(into.selected), layout.causal) if sparse else None

    def _output(self, outputs: Tensor, g: Tensor) -> Tensor:
        return linear(outputs * g.sigmoid() if self.mla.output_gate else outputs, self.o_proj)

    def prepare(self) -> None:
        """Lay out the up-projections for decoding: W_UK [h, nope, rank] and W_UV [h, rank, v]."""
        up = self.kv_b.detach().unflatten(0, (self.mla.num_heads, -1))
        self.w_uk = up[:, : self.mla.nope_dim].contiguous()
        self.w_uv = up[:, self.mla.nope_dim :].mT.contiguous()

    def step(
        self, x: Tensor, memory: MlaMemory, lengths: Tensor, horizon: int, sparse: bool
    ) -> tuple[Tensor, Tensor | None]:
        """One token per slot: x [B, H], written to position lengths[b] of `memory`; reads positions below `horizon`.

        Returns outputs [B, H] and selected int64 [B, top_k] (None without an indexer). Every shape but the index
        scores' is fixed, and what is masked adds exact zeros: a row's result never depends on other rows.
        """
        latent, q, c, r, g = self._project(x)
        slots, places = memory.latents.shape[:2]
        place = lengths + torch.arange(slots, device=x.device) * places
        memory.latents.view(slots * places, -1).index_copy_(0, place, torch.cat((c, r), dim=-1))
        selected = None
        if self.indexer is not None and memory.index_keys is not None:
            key, weights = self.indexer.keys(x)
            memory.index_keys.view(slots * places, -1).index_copy_(0, place, key)
            selected = torch.full((slots, self.indexer.top_k), -1, device=x.device)
        if selected is None or self.indexer is None or not sparse:
            latents = memory.latents[:, :-1]
            allowed = torch.arange(places - 1, device=x.device) <= lengths[:, None]
        else:
            chosen = self._choose(latent, weights, memory, lengths, horizon)
            allowed = chosen >= 0
            source = (chosen.clamp(min=0) + torch.arange(slots, device=x.device)[:, None] * places).flatten()
            latents = memory.latents.view(slots * places, -1).index_select(0, source).unflatten(0, (slots, -1))
            selected = chosen.masked_fill((lengths < self.indexer.top_k)[:, None], -1)
        query = torch.bmm(q[..., : self.mla.nope_dim].transpose(0, 1), self.w_uk).transpose(0, 1)
        query = torch.cat((query, q[..., self.mla.nope_dim :]), dim=-1)
        mixed = attend_latent(query, latents, allowed, self.mla.kv_lora_rank, self.scale)
        outputs = torch.bmm(mixed.transpose(0, 1), self.w_uv).transpose(0, 1).flatten(1)
        return self._output(outputs, g), selected

    def _choose(self, latent: Tensor, weights: Tensor, memory: MlaMemory, lengths: Tensor, horizon: int) -> Tensor:
        """Positions to read per slot, int64 [B, top_k], ascending, -1 padded."""
        assert self.indexer is not None
        assert memory.index_keys is not None
        positions = torch.arange(horizon, device=latent.device)
        causal = positions <= lengths[:, None]
        top_k = self.indexer.top_k
        if horizon <= top_k:
            chosen = positions.masked_fill(~causal, -1)
        else:
            scores = self.indexer.step(latent, weights, memory.index_keys[:, :horizon])
            chosen = select(scores, causal, top_k)
        return nn.functional.pad(chosen, (0, top_k - chosen.shape[-1]), value=-1)
