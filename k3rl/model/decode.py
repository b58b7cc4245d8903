"""Decoding: prefill of one sequence, then tokens of some slots of a cache, one or several of each per step.

A step advances the slots it names and leaves the others as they are. No slot's result depends on the others' contents
or count, nor on how its tokens are cut into steps, so a request samples the same tokens whatever runs beside it. On
CPUs the step is C++ (k3rl.model.cpu_decode); where that cannot be had, it is the torch of this file.
Legend: B slots, n tokens of a step, P rows whose logits are wanted, V vocabulary, T cached positions, M MoE layers,
K experts per token, D sparse-attention layers, S selected positions.
"""

from __future__ import annotations

from copy import copy
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import linear

from k3rl.errors import UserError
from k3rl.model.cpu_decode import CpuDecoder, cpu_decoder, from_tiles, memories, to_tiles
from k3rl.model.kda import Kda, KdaMemory
from k3rl.model.layout import Layout
from k3rl.model.mla import Mla, MlaMemory
from k3rl.model.moe import LatentMoe
from k3rl.model.transformer import Replay, Run, Stream, Transformer

HORIZON = 64
"""Index scores are computed over the longest slot's length rounded up to this."""

ROWS = 8
"""Steps in torch run on slots rounded up to this: at ragged batch sizes the last rows of a product are summed in
another order, and a result would depend on the slot it stands in."""


@dataclass(frozen=True)
class Snapshot:
    """The memory of one sequence of `length` tokens, per layer: KDA states [heads, dk, dv] and convolution inputs, or
    latents [length, .] and index keys. What a group of requests with one prompt shares."""

    length: int
    layers: tuple[KdaMemory | MlaMemory, ...]


@dataclass(frozen=True, kw_only=True)
class Step:
    """Of n tokens: experts int64 [n, M, K]; selected int64 [n, D, S] (-1 padded, a row of -1 read everything); logits
    [P, V] of all or of those asked for."""

    logits: Tensor
    experts: Tensor
    selected: Tensor


class Cache:
    """The memory of `slots` sequences of up to `max_context` tokens; `length` int64 tokens held per slot.

    `tiled`: for the C++ step, index keys laid out as it reads them; else tensors have `rows` >= slots rows, of which
    the ones beyond `slots` are never active.
    """

    def __init__(self, model: Transformer, *, slots: int, max_context: int, tiled: bool) -> None:
        if slots < 1 or max_context < 1:
            raise UserError(f"a cache needs at least one slot and one position: got {slots} and {max_context}")
        config, weight = model.config, model.embed
        self.tiled = tiled
        self.slots, self.max_context = slots, -(-max_context // HORIZON) * HORIZON
        self.rows = rows = slots if tiled else -(-slots // ROWS) * ROWS
        self.length = torch.zeros(rows, dtype=torch.int64, device=weight.device)
        self.layers: list[KdaMemory | MlaMemory] = []
        for index in range(config.num_layers):
            if index in config.full_attention:
                # One spare position takes what full inactive slots would write.
                shape = (rows, self.max_context + 1)
                keys = None if config.dsa is None else weight.new_zeros(*shape, config.dsa.head_dim)
                width = config.mla.kv_lora_rank + config.mla.rope_dim
                self.layers.append(MlaMemory(weight.new_zeros(*shape, width), keys))
            else:
                kda = config.kda
                state = weight.new_zeros(rows, kda.num_heads, kda.head_dim, kda.head_dim)
                self.layers.append(KdaMemory(state, weight.new_zeros(rows, kda.conv_kernel - 1, 3 * kda.width)))
        self.memories = memories(self.layers)

    def first(self, slots: int) -> Cache:
        """The first `slots` slots as a cache that shares this one's memory: steps on it cost less."""
        part = copy(self)
        part.slots, part.rows = slots, min(-(-slots // ROWS) * ROWS, self.rows)
        part.length = self.length[: part.rows]
        part.layers = [memory.first(part.rows) for memory in self.layers]
        return part

    def load(self, slot: int, snapshot: Snapshot) -> None:
        """Put a sequence's memory into a slot, whatever was there."""
        if snapshot.length > self.max_context:
            raise UserError(f"a prompt of {snapshot.length} tokens does not fit a context of {self.max_context}")
        for mine, its in zip(self.layers, snapshot.layers, strict=True):
            if isinstance(mine, KdaMemory) and isinstance(its, KdaMemory):
                mine.state[slot], mine.inputs[slot] = its.state, its.inputs
            elif isinstance(mine, MlaMemory) and isinstance(its, MlaMemory):
                mine.latents[slot, : snapshot.length] = its.latents
                if mine.index_keys is not None and its.index_keys is not None:
                    keys = to_tiles(its.index_keys) if self.tiled else its.index_keys
                    mine.index_keys[slot, : len(keys)] = keys
        self.length[slot] = snapshot.length

    def snapshot(self, slot: int) -> Snapshot:
        """A copy of a slot's memory."""
        length = int(self.length[slot])
        layers: list[KdaMemory | MlaMemory] = []
        for memory in self.layers:
            if isinstance(memory, KdaMemory):
                layers.append(KdaMemory(memory.state[slot].clone(), memory.inputs[slot].clone()))
            else:
                keys = None
                if memory.index_keys is not None:
                    held = memory.index_keys[slot]
                    keys = from_tiles(held, length) if self.tiled else held[:length].clone()
                layers.append(MlaMemory(memory.latents[slot, :length].clone(), keys))
        return Snapshot(length, tuple(layers))

    def clear(self, slot: int) -> None:
        """Empty a slot, as if no token had been fed to it."""
        for memory in self.layers:
            if isinstance(memory, KdaMemory):
                memory.state[slot] = 0
                memory.inputs[slot] = 0
        self.length[slot] = 0


@torch.no_grad()
def prepare(model: Transformer) -> CpuDecoder | None:
    """Lay out the weights for `decode`; needed again after the parameters changed."""
    native = cpu_decoder(model)
    if native is None:
        for module in model.modules():
            if isinstance(module, Mla | LatentMoe):
                module.prepare()
    return native


@torch.no_grad()
def decode(
    model: Transformer,
    native: CpuDecoder | None,
    tokens: Tensor,
    cache: Cache,
    slots: Tensor,
    *,
    logits_at: Tensor | None = None,
) -> Step:
    """Feed tokens int64 [n] to `slots` int64 [n]; advances `cache` in place. Several tokens of one slot stand side by
    side and follow each other. `native`: what `prepare` returned; `logits_at` int64 [P]: rows, ascending, whose logits
    are wanted (all by default). Raises UserError if a slot is full or a token is not in the vocabulary."""
    positions, places = _positions(cache, slots)
    longest = int(positions.max())
    if longest >= cache.max_context:
        raise UserError(f"a slot already holds {longest} tokens, all its context of {cache.max_context}")
    lowest, highest = tokens.aminmax()
    if lowest < 0 or highest >= model.config.vocab_size:  # the C++ step would read beyond the embedding
        raise UserError(f"token ids {int(lowest)} to {int(highest)} in a vocabulary of {model.config.vocab_size}")
    if logits_at is None:
        logits_at = torch.arange(len(slots), device=slots.device)
    if native is not None:
        logits, experts, selected = native.step(tokens, cache, slots, positions, logits_at, model.sparse)
        cache.length.scatter_reduce_(0, slots, positions + 1, "amax")
        return Step(logits=logits, experts=experts, selected=selected)
    # Torch takes one token of a slot at a time.
    steps = [
        (rows, _torch_decode(model, tokens[rows], cache, slots[rows]))
        for place in range(int(places.max()) + 1)
        for rows in [(places == place).nonzero()[:, 0]]
    ]
    order = torch.cat([rows for rows, _ in steps]).argsort()
    return Step(
        logits=torch.cat([step.logits for _, step in steps])[order][logits_at],
        experts=torch.cat([step.experts for _, step in steps])[order],
        selected=torch.cat([step.selected for _, step in steps])[order],
    )


def _positions(cache: Cache, slots: Tensor) -> tuple[Tensor, Tensor]:
    """Position of each token in its slot, and its place [n] among the tokens of its slot in this step."""
    rows = torch.arange(len(slots), device=slots.device)
    starts = torch.ones_like(slots, dtype=torch.bool)
    starts[1:] = slots[1:] != slots[:-1]
    places = rows - torch.where(starts, rows, 0).cummax(0).values
    return cache.length[slots] + places, places


@torch.no_grad()
def prefill(
    model: Transformer, native: CpuDecoder | None, tokens: Tensor, *, logits_at: Tensor | None = None
) -> tuple[Snapshot, Step]:
    """Run one sequence, tokens int64 [T], from empty: its memory, and the results of all positions (logits of
    `logits_at` only, if given)."""
    length = tokens.shape[0]
    if native is not None:
        cache = Cache(model, slots=1, max_context=length, tiled=True)
        step = decode(model, native, tokens, cache, torch.zeros_like(tokens), logits_at=logits_at)
        return cache.snapshot(0), step
    layout = Layout(torch.tensor([0, length], dtype=torch.int32, device=tokens.device), length)
    run = Run(model, layout, Replay(), remember=True)
    hidden = run.hidden(tokens)
    layers: list[KdaMemory | MlaMemory] = []
    for memory in run.memories:
        if isinstance(memory, KdaMemory):
            layers.append(KdaMemory(memory.state[0], memory.inputs[0]))
        elif isinstance(memory, MlaMemory):
            keys = None if memory.index_keys is None else memory.index_keys[0, :length]
            layers.append(MlaMemory(memory.latents[0, :length], keys))
    rows = hidden if logits_at is None else hidden.index_select(0, logits_at)
    out = run.output(linear(rows, model.lm_head), hidden)
    return Snapshot(length, tuple(layers)), Step(logits=out.logits, experts=out.experts, selected=out.selected)


def _torch_decode(model: Transformer, tokens: Tensor, cache: Cache, slots: Tensor) -> Step:
    """Computes every slot up to the highest of `slots`; the ones between are held where they are."""
    part = cache.first(int(slots.max()) + 1)
    active = torch.zeros(part.rows, dtype=torch.bool, device=tokens.device).index_fill_(0, slots, True)
    fed = tokens.new_zeros(part.rows).index_copy_(0, slots, tokens)
    horizon = -(-(int((part.length * active).max()) + 1) // HORIZON) * HORIZON
    stream = Stream(model.config.rms_norm_eps, model.embed.index_select(0, fed))
    experts, selections = [], []
    for layer, memory in zip(model.layers, part.layers, strict=True):
        x = stream.read(layer.attention_mix, layer.attention_norm)
        if layer.appends:
            stream.append()
        if isinstance(layer.attention, Kda):
            stream.add(layer.attention.step(x, memory, active))
        else:
            y, selected = layer.attention.step(x, memory, part.length, horizon, model.sparse)
            stream.add(y)
            selections.append(selected)
        x = stream.read(layer.feed_forward_mix, layer.feed_forward_norm)
        if isinstance(layer.feed_forward, LatentMoe):
            routed = layer.feed_forward.step(x)
            experts.append(routed.experts)
            stream.add(routed.outputs)
        else:
            stream.add(layer.feed_forward(x))
    logits = linear(stream.read(model.output_mix, model.norm), model.lm_head)
    part.length += active
    nothing = tokens.new_empty((part.rows, 0, 0))
    return Step(
        logits=logits[slots],
        experts=(torch.stack(experts, 1) if experts else nothing)[slots],
        selected=(torch.stack(selections, 1) if model.config.dsa is not None else nothing)[slots],
    )
