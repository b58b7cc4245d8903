"""Decoding: prefill of one sequence in chunk form, then one token per slot and step from caches.

A step advances the slots it names and leaves the others as they are. No slot's result depends on the others' contents
or count, so a request samples the same tokens whatever runs beside it. On CPUs the step is C++ (k3rl.model.cpu_decode);
where that cannot be had, it is the torch of this file.
Legend: B slots, n of them in a step, V vocabulary, T cached positions, M MoE layers, K experts per token,
D sparse-attention layers, S selected positions.
"""

from __future__ import annotations

from copy import copy
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import linear

from k3rl.errors import UserError
from k3rl.model.cpu_decode import CpuDecoder, cpu_decoder, memories
from k3rl.model.kda import Kda, KdaMemory
from k3rl.model.layout import Layout
from k3rl.model.mla import Mla, MlaMemory
from k3rl.model.moe import LatentMoe
from k3rl.model.transformer import Output, Replay, Run, Stream, Transformer

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
    """logits [n, V]; experts int64 [n, M, K]; selected int64 [n, D, S] (-1 padded, a row of -1 read everything)."""

    logits: Tensor
    experts: Tensor
    selected: Tensor


class Cache:
    """The memory of `slots` sequences of up to `max_context` tokens; `length` int64 tokens held per slot.

    Tensors have `rows` >= slots rows; the ones beyond `slots` are never active.
    """

    def __init__(self, model: Transformer, *, slots: int, max_context: int) -> None:
        if slots < 1 or max_context < 1:
            raise UserError(f"a cache needs at least one slot and one position: got {slots} and {max_context}")
        config, weight = model.config, model.embed
        self.slots, self.max_context = slots, -(-max_context // HORIZON) * HORIZON
        self.rows = rows = -(-slots // ROWS) * ROWS
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
        part.slots, part.rows = slots, -(-slots // ROWS) * ROWS
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
                if mine.index_keys is not None:
                    mine.index_keys[slot, : snapshot.length] = its.index_keys
        self.length[slot] = snapshot.length

    def snapshot(self, slot: int) -> Snapshot:
        """A copy of a slot's memory."""
        length = int(self.length[slot])
        layers: list[KdaMemory | MlaMemory] = []
        for memory in self.layers:
            if isinstance(memory, KdaMemory):
                layers.append(KdaMemory(memory.state[slot].clone(), memory.inputs[slot].clone()))
            else:
                keys = None if memory.index_keys is None else memory.index_keys[slot, :length].clone()
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
def prefill(
    model: Transformer, tokens: Tensor, replay: Replay | None = None, *, logits_at: Tensor | None = None
) -> tuple[Snapshot, Output]:
    """Run one sequence, tokens int64 [T], from empty in chunk form: its memory, and the output of all positions
    (logits of `logits_at` only, if given)."""
    length = tokens.shape[0]
    layout = Layout(torch.tensor([0, length], dtype=torch.int32, device=tokens.device), length)
    run = Run(model, layout, replay or Replay(), remember=True)
    hidden = run.hidden(tokens)
    layers: list[KdaMemory | MlaMemory] = []
    for memory in run.memories:
        if isinstance(memory, KdaMemory):
            layers.append(KdaMemory(memory.state[0], memory.inputs[0]))
        elif isinstance(memory, MlaMemory):
            keys = None if memory.index_keys is None else memory.index_keys[0, :length]
            layers.append(MlaMemory(memory.latents[0, :length], keys))
    rows = hidden if logits_at is None else hidden.index_select(0, logits_at)
    return Snapshot(length, tuple(layers)), run.output(linear(rows, model.lm_head), hidden)


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
def decode(model: Transformer, native: CpuDecoder | None, tokens: Tensor, cache: Cache, slots: Tensor) -> Step:
    """Feed tokens int64 [n] to `slots` int64 [n], all different; advances `cache` in place. `native`: what `prepare`
    returned. Raises UserError if one of them is full."""
    longest = int(cache.length[slots].max())
    if longest >= cache.max_context:
        raise UserError(f"a slot already holds {longest} tokens, all its context of {cache.max_context}")
    if native is None:
        return _torch_decode(model, tokens, cache, slots)
    logits, experts, selected = native.step(tokens, cache, slots, model.sparse)
    cache.length[slots] += 1
    return Step(logits=logits, experts=experts, selected=selected)


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
