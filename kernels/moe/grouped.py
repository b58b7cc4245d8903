"""The mixture of experts for training: tokens sorted by expert, one product per expert over its slice.

Equal to `reference.looped_experts`; the gathers are permutations, so that their gradients are gathers too and the sums
have a fixed order.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import torch
from torch import Tensor

from k3rl.kernels.moe.reference import Activation


def grouped_experts(
    x: Tensor, experts: Tensor, weights: Tensor, w13: Tensor, w2: Tensor, activation: Activation
) -> Tensor:
    """sum_k weights[n, k] E_{experts[n, k]}(x[n]) [N, D]: x [N, D], experts int64 and weights [N, K], w13 [E, 2F, D],
    w2 [E, D, F]; `activation` maps [..., 2F] to [..., F]."""
    flat = experts.flatten()
    order = flat.argsort(stable=True)
    place = torch.empty_like(order)
    place[order] = torch.arange(order.shape[0], device=order.device)
    place = place.view_as(experts)
    bounds = [0, *torch.bincount(flat, minlength=w13.shape[0]).cumsum(0).tolist()]
    rows = _Dispatch.apply(x, order // experts.shape[1], place)  # type: ignore[no-untyped-call]
    hidden = activation(_GroupedProduct.apply(rows, w13, bounds))  # type: ignore[no-untyped-call]
    outputs = _GroupedProduct.apply(hidden, w2, bounds)  # type: ignore[no-untyped-call]
    return _Combine.apply(outputs, weights, order, place)  # type: ignore[no-any-return, no-untyped-call]


class _GroupedProduct(torch.autograd.Function):
    """rows[a:b] @ weight[e]^T for the slice [a, b) of each expert e."""

    @staticmethod
    def forward(ctx: Any, rows: Tensor, weight: Tensor, bounds: list[int]) -> Tensor:
        ctx.save_for_backward(rows, weight)
        ctx.bounds = bounds
        result = rows.new_empty(rows.shape[0], weight.shape[1])
        for e, (a, b) in enumerate(pairwise(bounds)):
            torch.mm(rows[a:b], weight[e].mT, out=result[a:b])
        return result

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor, None]:
        rows, weight = ctx.saved_tensors
        d_rows, d_weight = torch.empty_like(rows), torch.empty_like(weight)
        for e, (a, b) in enumerate(pairwise(ctx.bounds)):
            torch.mm(gradient[a:b], weight[e], out=d_rows[a:b])
            torch.mm(gradient[a:b].mT, rows[a:b], out=d_weight[e])
        return d_rows, d_weight, None


class _Dispatch(torch.autograd.Function):
    """x[token]: each token's row once per chosen expert, in expert order."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, token: Tensor, place: Tensor) -> Tensor:
        ctx.place = place
        return x.index_select(0, token)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None]:
        return gradient.index_select(0, ctx.place.flatten()).unflatten(0, ctx.place.shape).sum(1), None, None


class _Combine(torch.autograd.Function):
    """sum_k weights[n, k] rows[place[n, k]]."""

    @staticmethod
    def forward(ctx: Any, rows: Tensor, weights: Tensor, order: Tensor, place: Tensor) -> Tensor:
        gathered = rows.index_select(0, place.flatten()).unflatten(0, place.shape)
        ctx.save_for_backward(gathered, weights, order)
        return torch.bmm(weights.unsqueeze(1), gathered).squeeze(1)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor, None, None]:
        gathered, weights, order = ctx.saved_tensors
        d_weights = torch.bmm(gathered, gradient.unsqueeze(-1)).squeeze(-1)
        d_rows = (gradient.unsqueeze(1) * weights.unsqueeze(-1)).flatten(0, 1).index_select(0, order)
        return d_rows, d_weights, None, None
