"""The definition of the sparse attention of full-attention layers, in plain torch.

Legend: B sequences or slots, L queries, T key positions, h heads, j index heads, d head width, S selected positions.
"""

from __future__ import annotations

import torch
from torch import Tensor

GRID = 2.0**-12
"""Scores are rounded to this fraction of the row's largest magnitude before selection."""


def index_scores(queries: Tensor, keys: Tensor, weights: Tensor) -> Tensor:
    """I[b, l, t] = sum_j weights[b, l, j] relu(queries[b, l, j] . keys[b, t]).

    queries [B, L, j, d], keys [B, T, d], weights [B, L, j] (with its scale); returns [B, L, T].
    """
    heads = queries.shape[2]
    dots = torch.bmm(queries.flatten(1, 2), keys.mT).relu().unflatten(1, (-1, heads))  # [B, L, j, T]
    return (weights.unsqueeze(-2) @ dots).squeeze(-2)


def select(scores: Tensor, causal: Tensor, top_k: int) -> Tensor:
    """The min(top_k, causal count) positions of highest score per row, ascending, padded with -1.

    scores [..., T] and causal bool [..., T]; returns int64 [..., min(top_k, T)]. Scores are rounded (half to even) to
    a grid of 2^-12 of the row's largest magnitude over its causal positions; ties go to the later position, so the
    same inputs give the same set whatever the order of summation did to the last bits.
    """
    positions = scores.shape[-1]
    scores = scores.masked_fill(~causal, 0.0)
    step = scores.abs().amax(dim=-1, keepdim=True).mul_(GRID)
    grid = torch.round(scores / step.masked_fill(step == 0, 1.0)).to(torch.int64)
    # One integer key orders by rounded score, then by position; positions that may not be read come last.
    order = grid * positions + torch.arange(positions, device=scores.device)
    order = order.masked_fill(~causal, torch.iinfo(torch.int64).min)
    best, chosen = order.topk(min(top_k, positions), dim=-1, sorted=False)
    # Missing choices sort behind every position, then become -1.
    chosen = chosen.masked_fill(best == torch.iinfo(torch.int64).min, positions).sort(dim=-1).values
    return chosen.masked_fill(chosen == positions, -1)


def selection_mask(selected: Tensor, causal: Tensor) -> Tensor:
    """Which positions each row may read: bool like `causal` [..., T], from `selected` [..., S] (-1 padded).

    A row of -1 alone means every causal position.
    """
    positions = causal.shape[-1]
    mask = torch.zeros(*causal.shape[:-1], positions + 1, dtype=torch.bool, device=causal.device)
    mask.scatter_(-1, selected.masked_fill(selected < 0, positions), True)
    everything = (selected < 0).all(dim=-1, keepdim=True)
    return (mask[..., :positions] | everything) & causal


def attend(queries: Tensor, keys: Tensor, values: Tensor, allowed: Tensor, scale: float) -> tuple[Tensor, Tensor]:
    """Softmax attention over allowed positions: queries, keys [B, h, L|T, dk], values [B, h, T, dv], allowed bool
    [B, L, T] with at least one True per row. Returns outputs [B, h, L, dv] and probabilities [B, h, L, T]."""
    logits = (queries * scale) @ keys.mT
    probabilities = logits.masked_fill_(~allowed.unsqueeze(1), -torch.inf).softmax(dim=-1)
    return probabilities @ values, probabilities


def attend_latent(queries: Tensor, latents: Tensor, allowed: Tensor, rank: int, scale: float) -> Tensor:
    """One step of absorbed attention: queries [B, h, r + d] against latents [B, S, r + d], whose first `rank` columns
    are also the values; allowed bool [B, S]. Returns [B, h, r]. Rows without an allowed position give NaN."""
    logits = torch.bmm(queries * scale, latents.mT)
    probabilities = logits.masked_fill_(~allowed.unsqueeze(1), -torch.inf).softmax(dim=-1)
    return torch.bmm(probabilities, latents[..., :rank])
