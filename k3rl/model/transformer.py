"""The language model: embedding, layers of KDA or gated MLA with feed-forward blocks, attention residuals, head.

One forward over packed tokens serves training, prefill and tests; `k3rl.model.decode` advances one token at a time.
Legend: N packed tokens, B sequences, M MoE layers, K experts a token, D sparse-attention layers, S selected positions.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn
from torch.nn.functional import linear

from k3rl.errors import UserError
from k3rl.model.config import ModelConfig
from k3rl.model.functional import residual_mix_norm, rms_norm
from k3rl.model.initialization import initialize
from k3rl.model.kda import Kda, KdaMemory
from k3rl.model.layout import Layout
from k3rl.model.mla import Attended, Mla, MlaMemory
from k3rl.model.moe import DenseFeedForward, LatentMoe, Routed

TAPS = frozenset({"hidden", "attn_out", "router_weights", "index_scores", "indexer_loss", "choices"})


@dataclass(frozen=True, kw_only=True)
class Replay:
    """What to use instead of choosing: experts int64 [N, M, K] (rows of -1 choose freely), selected int64 [N, D, S]
    positions in the sequence (-1 padded, rows of -1 read everything)."""

    experts: Tensor | None = None
    selected: Tensor | None = None


@dataclass(kw_only=True)
class Output:
    """logits [P, V] (all N positions, or those of `logits_at`); hidden [N, H], the head's input; experts int64
    [N, M, K]; selected int64 [N, D, S]; for [B, T] inputs N is unflattened to [B, T].

    `own_experts`, `own_selected`: what this model would have chosen at each replayed place (want "choices").
    `indexer_loss`: summed over layers (want "indexer_loss"). `taps`: per-layer lists under the other names of TAPS.
    """

    logits: Tensor
    hidden: Tensor
    experts: Tensor
    selected: Tensor
    own_experts: Tensor | None = None
    own_selected: Tensor | None = None
    indexer_loss: Tensor | None = None
    taps: dict[str, list[Tensor]] = field(default_factory=dict)


class Layer(nn.Module):
    """One attention and one feed-forward block with the norms and residual projections that feed them."""

    def __init__(self, config: ModelConfig, index: int) -> None:
        super().__init__()
        hidden = config.hidden_size
        self.attention = Mla(config) if index in config.full_attention else Kda(config)
        self.feed_forward = LatentMoe(config) if index in config.moe_layers else DenseFeedForward(config)
        self.attention_norm = nn.Parameter(torch.empty(hidden))
        self.feed_forward_norm = nn.Parameter(torch.empty(hidden))
        self.appends = config.residual_block is not None and index % config.residual_block == 0
        mixes = config.residual_block is not None
        self.attention_mix = Mix(hidden) if mixes else None
        self.feed_forward_mix = Mix(hidden) if mixes else None


class Mix(nn.Module):
    """Weights of an attention residual: score = sum_d norm_d proj_d RMS(V)_d."""

    def __init__(self, hidden: int) -> None:
        super().__init__()
        self.norm = nn.Parameter(torch.empty(hidden))
        self.proj = nn.Parameter(torch.empty(hidden))


@dataclass
class Stream:
    """The residual stream: the bank of finished block sums and the running sum (None right after an append)."""

    eps: float
    running: Tensor | None
    bank: list[Tensor] = field(default_factory=list)

    def read(self, mix: Mix | None, norm: Tensor) -> Tensor:
        """The normed input of a block."""
        if mix is None or not self.bank:
            assert self.running is not None
            return rms_norm(self.running, norm, self.eps)
        sources = self.bank if self.running is None else [*self.bank, self.running]
        return residual_mix_norm(sources, mix.norm * mix.proj, norm, self.eps)

    def append(self) -> None:
        assert self.running is not None
        self.bank.append(self.running)
        self.running = None

    def add(self, y: Tensor) -> None:
        self.running = y if self.running is None else self.running + y


class Transformer(nn.Module):
    """The network of a `ModelConfig` and its forward over whole sequences (`k3rl.model.Model` adds decoding and files).

    `sparse` False makes full-attention layers read every past token (training before the indexer exists).
    """

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.config = config
        self.sparse = True
        self.embed = nn.Parameter(torch.empty(config.vocab_size, config.hidden_size))
        self.layers = nn.ModuleList(Layer(config, index) for index in range(config.num_layers))
        self.norm = nn.Parameter(torch.empty(config.hidden_size))
        self.output_mix = None if config.residual_block is None else Mix(config.hidden_size)
        self.lm_head = nn.Parameter(torch.empty(config.vocab_size, config.hidden_size))
        initialize(self, config)

    @property
    def qat(self) -> bool:
        """Whether routed experts multiply by their MXFP4 values (gradients pass straight through)."""
        return any(experts.qat for experts in self._experts())

    @qat.setter
    def qat(self, on: bool) -> None:
        for experts in self._experts():
            experts.qat = on

    def _experts(self) -> Iterable[nn.Module]:
        return (layer.feed_forward.experts for layer in self.layers if isinstance(layer.feed_forward, LatentMoe))

    def forward(
        self,
        tokens: Tensor,
        cu_seqlens: Tensor | None = None,
        replay: Replay | None = None,
        want: Iterable[str] = (),
        logits_at: Tensor | None = None,
    ) -> Output:
        """Packed tokens int64 [N] with cu_seqlens int32 [B + 1], or tokens [B, T]; see `Output`.

        `logits_at` int64 [P]: packed positions whose logits are wanted, when the head's cost for all is not.
        """
        shape = tokens.shape
        if cu_seqlens is None:
            length = shape[-1]
            cu_seqlens = torch.arange(0, tokens.numel() + 1, length, dtype=torch.int32, device=tokens.device)
        tokens = tokens.flatten()
        wanted = frozenset(want)
        if wanted - TAPS:
            raise UserError(f"unknown taps {sorted(wanted - TAPS)}: choose from {sorted(TAPS)}")
        run = Run(self, Layout(cu_seqlens, tokens.shape[0]), replay or Replay(), wanted)
        hidden = run.hidden(tokens)
        rows = hidden if logits_at is None else hidden.index_select(0, logits_at)
        output = run.output(linear(rows, self.lm_head), hidden)
        if len(shape) == 2:
            output.hidden, output.experts = output.hidden.view(*shape, -1), output.experts.unflatten(0, shape)
            output.selected = output.selected.unflatten(0, shape)
            if logits_at is None:
                output.logits = output.logits.view(*shape, -1)
        return output


class Run:
    """One forward pass: walks the layers and collects what they chose and what was asked for."""

    def __init__(
        self,
        model: Transformer,
        layout: Layout,
        replay: Replay,
        want: frozenset[str] = frozenset(),
        *,
        remember: bool = False,
    ) -> None:
        self.model, self.layout, self.replay, self.want, self.remember = model, layout, replay, want, remember
        self.routed: list[Routed] = []
        self.attended: list[Attended] = []
        self.memories: list[KdaMemory | MlaMemory | None] = []
        self.taps: dict[str, list[Tensor]] = {name: [] for name in want}

    def hidden(self, tokens: Tensor) -> Tensor:
        """The head's input [N, H] of tokens [N]."""
        model = self.model
        stream = Stream(model.config.rms_norm_eps, nn.functional.embedding(tokens, model.embed))
        for layer in model.layers:
            x = stream.read(layer.attention_mix, layer.attention_norm)
            if layer.appends:
                stream.append()
            y = self._attend(layer.attention, x)
            self._tap("attn_out", y)
            stream.add(y)
            x = stream.read(layer.feed_forward_mix, layer.feed_forward_norm)
            stream.add(self._feed_forward(layer.feed_forward, x))
            self._tap("hidden", stream.running)
        return stream.read(model.output_mix, model.norm)

    def _attend(self, attention: nn.Module, x: Tensor) -> Tensor:
        if isinstance(attention, Kda):
            y, memory = attention(x, self.layout, remember=self.remember)
            self.memories.append(memory)
            return y  # type: ignore[no-any-return]
        selected = self.replay.selected
        attended = attention(
            x,
            self.layout,
            sparse=self.model.sparse,
            replay=None if selected is None else selected[:, len(self.attended)],
            remember=self.remember,
            want=self.want,
        )
        self.attended.append(attended)
        self.memories.append(attended.memory)
        return attended.outputs  # type: ignore[no-any-return]

    def _feed_forward(self, block: nn.Module, x: Tensor) -> Tensor:
        if not isinstance(block, LatentMoe):
            return block(x)  # type: ignore[no-any-return]
        experts = self.replay.experts
        routed = block(x, None if experts is None else experts[:, len(self.routed)], want_own="choices" in self.want)
        self.routed.append(routed)
        self._tap("router_weights", routed.weights)
        return routed.outputs  # type: ignore[no-any-return]

    def _tap(self, name: str, value: Tensor | None) -> None:
        if name in self.want and value is not None:
            self.taps[name].append(value)

    def output(self, logits: Tensor, hidden: Tensor) -> Output:
        tokens, config = hidden.shape[0], self.model.config
        selections = [a.selected for a in self.attended if a.selected is not None]
        own = [a.own_selected for a in self.attended if a.own_selected is not None]
        losses = [a.indexer_loss for a in self.attended if a.indexer_loss is not None]
        self.taps["index_scores"] = [a.index_scores for a in self.attended if a.index_scores is not None]
        nothing = hidden.new_empty((tokens, 0, 0), dtype=torch.int64)
        routes = [r.experts for r in self.routed]
        choices = "choices" in self.want
        return Output(
            logits=logits,
            hidden=hidden,
            experts=torch.stack(routes, 1) if routes else nothing.view(tokens, 0, 0),
            selected=torch.stack(selections, 1) if config.dsa is not None else nothing,
            own_experts=torch.stack([r.own_experts for r in self.routed], 1) if choices and routes else None,  # type: ignore[misc]
            own_selected=torch.stack(own, 1) if choices and own else None,
            indexer_loss=torch.stack(losses).sum() if losses else None,
            taps=self.taps,
        )
