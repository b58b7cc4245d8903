"""Causal attention by blocks of queries, each against the keys up to its end: half the work of the square.

Equal to `reference.attend`, with the gradients written out; probabilities are kept for the backward pass, per block.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

BLOCK = 64


def attend_blocks(queries: Tensor, keys: Tensor, values: Tensor, allowed: Tensor | None, scale: float) -> Tensor:
    """Softmax attention: queries, keys [B, h, L, dk], values [B, h, L, dv]; returns [B, h, L, dv].

    allowed bool [B, L, L] within the causal triangle, at least one True per row; None: every causal position.
    """
    return _AttendBlocks.apply(queries, keys, values, allowed, scale)  # type: ignore[no-any-return, no-untyped-call]


def _blocks(length: int) -> list[tuple[int, int]]:
    return [(start, min(start + BLOCK, length)) for start in range(0, length, BLOCK)]


class _AttendBlocks(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, queries: Tensor, keys: Tensor, values: Tensor, allowed: Tensor | None, scale: float
    ) -> Tensor:
        q, k, v = (queries * scale).flatten(0, 1), keys.flatten(0, 1), values.flatten(0, 1)
        outputs = q.new_empty(*q.shape[:-1], v.shape[-1])
        kept = []
        for a, b in _blocks(q.shape[1]):
            logits = torch.bmm(q[:, a:b], k[:, :b].mT)
            if allowed is None:
                future = torch.ones(b - a, b - a, dtype=torch.bool, device=q.device).triu(1)
                logits[:, :, a:].masked_fill_(future, -torch.inf)
            else:
                hidden = allowed[:, None, a:b, :b].logical_not()
                logits.view(*queries.shape[:2], b - a, b).masked_fill_(hidden, -torch.inf)
            mass = logits.softmax(dim=-1)
            torch.bmm(mass, v[:, :b], out=outputs[:, a:b])
            kept.append(mass)
        ctx.save_for_backward(q, k, v, *kept)
        ctx.scale, ctx.heads = scale, queries.shape[:2]
        return outputs.unflatten(0, ctx.heads)

    @staticmethod
    def backward(ctx: Any, d_outputs: Tensor) -> tuple[Tensor | None, ...]:
        q, k, v, *kept = ctx.saved_tensors
        d_o = d_outputs.flatten(0, 1)
        d_q, d_k, d_v = torch.empty_like(q), torch.zeros_like(k), torch.zeros_like(v)
        for (a, b), mass in zip(_blocks(q.shape[1]), kept, strict=True):
            d_v[:, :b].baddbmm_(mass.mT, d_o[:, a:b])
            d_mass = torch.bmm(d_o[:, a:b], v[:, :b].mT)
            d_logits = torch._softmax_backward_data(d_mass, mass, -1, mass.dtype)
            torch.bmm(d_logits, k[:, :b], out=d_q[:, a:b])
            d_k[:, :b].baddbmm_(d_logits.mT, q[:, a:b])
        d_q *= ctx.scale
        return (*(d.unflatten(0, ctx.heads) for d in (d_q, d_k, d_v)), None, None)
