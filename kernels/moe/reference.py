"""The definition of routing and of the mixture of experts, in plain torch.

Legend: N tokens, E experts, K chosen per token, D expert input, F expert width. `w13` [E, 2F, D] holds each expert's
gate rows, then its up rows; `w2` [E, D, F] its down projection; `activation` maps [..., 2F] to [..., F].
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

Activation = Callable[[Tensor], Tensor]


def choose(scores: Tensor, bias: Tensor, k: int) -> Tensor:
    """The k experts of highest score + bias per token, ascending ids: int64 [N, k] of scores [N, E], bias [E]."""
    return (scores + bias).topk(k, dim=-1, sorted=False).indices.sort(dim=-1).values


def route_weights(scores: Tensor, experts: Tensor, *, renormalize: bool, scaling: float) -> Tensor:
    """Mixture weights [N, K] of chosen `experts` [N, K]: their scores [N, E], normalised to sum to `scaling`."""
    chosen = scores.gather(-1, experts)
    if renormalize:
        chosen = chosen / (chosen.sum(dim=-1, keepdim=True) + 1e-20)
    return chosen * scaling


def looped_experts(
    x: Tensor, experts: Tensor, weights: Tensor, w13: Tensor, w2: Tensor, activation: Activation
) -> Tensor:
    """sum_k weights[n, k] E_{experts[n, k]}(x[n]), one expert at a time: x [N, D], experts int64 and weights [N, K]."""
    total = torch.zeros_like(x)
    for e in range(w13.shape[0]):
        token, place = (experts == e).nonzero(as_tuple=True)
        y = activation(x[token] @ w13[e].mT) @ w2[e].mT
        total = total.index_add(0, token, y * weights[token, place, None])
    return total


def dense_experts(
    x: Tensor, experts: Tensor, weights: Tensor, w13: Tensor, w2_transposed: Tensor, activation: Activation
) -> Tensor:
    """The same sum with every expert computed for every token and the others weighted by zero.

    Two products of fixed shape: a row's result depends on nothing but the row, which decoding needs. `w2_transposed`
    is w2 as [E, F, D], contiguous.
    """
    num_experts = w13.shape[0]
    hidden = activation((x @ w13.flatten(0, 1).mT).unflatten(-1, (num_experts, -1)))
    mass = weights.new_zeros(x.shape[0], num_experts).scatter_(-1, experts, weights)
    return hidden.mul_(mass.unsqueeze(-1)).flatten(1) @ w2_transposed.flatten(0, 1)
