"""The chunk form of Kimi Delta Attention: matrix products within tiles, one short recurrence over tiles.

Per tile, with G the inclusive cumulative log decay, A_ij = sum_d k_id k_jd exp(G_id - G_jd) for i > j and
P_ij = sum_d q_id k_jd exp(G_id - G_jd) for i >= j:

    (I + Diag(beta) A) [U, W] = Diag(beta) [V, exp(G) K]        Kt = exp(G_last - G) K

and everything is linear in the state S that enters the tile, so the recurrence over tiles is one product each:

    O = P U + (exp(G) Q - P W) S          S' = Kt^T U + (Diag(exp G_last) - Kt^T W) S

exp(G_i - G_j) is split as exp(G_i - G_m) exp(G_m - G_j) around the tile's middle m: at 16 tokens and 5 nats a token
each factor stays under 40 nats. The triangular system is inverted by substitution, which near-equal keys cannot upset.
Legend: R sequences times heads, Z tiles of all of them, C tokens of a tile.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.linalg import solve_triangular

TILE = 16
SPAN = 80.0
"""Nats of decay within a tile beyond which the split factors could leave fp32; smaller tiles are used then."""


def chunk_kda(
    queries: Tensor,
    keys: Tensor,
    values: Tensor,
    gates: Tensor,
    betas: Tensor,
    state: Tensor | None = None,
    *,
    bounded: bool = True,
) -> tuple[Tensor, Tensor]:
    """Outputs [R, L, dv] and the last state [R, dk, dv] for R sequences (times heads) of L tokens, L a multiple of 16.

    queries, keys, gates (log decay, <= 0) [R, L, dk], values [R, L, dv], betas [R, L]; `state` [R, dk, dv] enters the
    first tile (zeros by default). `bounded`: the caller guarantees gates >= -5; otherwise the tile shrinks to what the
    steepest span allows. Tokens with gate 0 and beta 0 leave the state unchanged.
    """
    rows, length = keys.shape[:2]
    if length % TILE:
        raise ValueError(f"chunk_kda: length {length} is not a multiple of {TILE}")
    tile = TILE if bounded else _tile(gates)
    if state is None:
        state = values.new_zeros(rows, keys.shape[-1], values.shape[-1])
    tiled = [x.reshape(-1, tile, x.shape[-1]) for x in (queries, keys, values, gates, betas.unsqueeze(-1))]
    outputs, last = _ChunkKda.apply(*tiled, state)  # type: ignore[no-untyped-call]
    return outputs.view(rows, length, -1), last


def _tile(gates: Tensor) -> int:
    """The largest tile of 16, 8, ..., 1 within which no channel decays by more than SPAN nats."""
    for tile in (16, 8, 4, 2):
        spans = gates.detach().unflatten(1, (-1, tile))[:, :, 1:].sum(dim=2)
        if float(spans.min()) >= -SPAN:
            return tile
    return 1


class _ChunkKda(torch.autograd.Function):
    """Tiles q, k, g [Z, C, dk], v [Z, C, dv], beta [Z, C, 1] and the entering state [R, dk, dv]; gradients by hand."""

    @staticmethod
    def forward(
        ctx: Any, q: Tensor, k: Tensor, v: Tensor, g: Tensor, beta: Tensor, state: Tensor
    ) -> tuple[Tensor, Tensor]:
        c, dv = q.shape[1], v.shape[-1]
        ones = torch.ones(c, c, dtype=g.dtype, device=g.device).tril()
        total = ones @ g
        centred = total - total[:, (c - 1) // 2, None]
        rise, fall = centred.exp(), centred.neg_().exp()
        decay, tail = total.exp(), (total[:, -1:] - total).exp()
        left = torch.cat((k * rise, q * rise), dim=1)
        right = k * fall
        dots = torch.bmm(left, right.mT)
        inner, scores = dots[:, :c], dots[:, c:].tril_()
        source = torch.cat((v, k * decay), dim=-1)
        inverse = torch.eye(c, dtype=k.dtype, device=k.device).expand(len(k), -1, -1)
        inverse = solve_triangular(inner * beta, inverse, upper=False, unitriangular=True)
        solved = torch.bmm(inverse, source * beta)
        mixer = torch.cat((scores, (k * tail).mT), dim=1)  # [Z, C + dk, C]: P over Kt^T
        mixed = torch.bmm(mixer, solved)
        constant, gain = mixed[..., :dv], mixed[..., dv:].neg()
        gain[:, :c] += q * decay
        gain[:, c:].diagonal(dim1=1, dim2=2).add_(decay[:, -1])
        states = _scan(gain[:, c:], constant[:, c:], state)
        outputs = torch.baddbmm(constant[:, :c], gain[:, :c], states[:-1].transpose(0, 1).flatten(0, 1))
        kept = (left, right, inner, inverse, source, solved, mixer, gain, states)
        ctx.save_for_backward(q, k, beta, rise, fall, decay, tail, *kept)
        return outputs, states[-1].clone()

    @staticmethod
    def backward(ctx: Any, d_outputs: Tensor, d_last: Tensor) -> tuple[Tensor, ...]:
        q, k, beta, rise, fall, decay, tail, *rest = ctx.saved_tensors
        left, right, inner, inverse, source, solved, mixer, gain, states = rest
        c, dv = q.shape[1], source.shape[-1] - k.shape[-1]
        d_states = _scan_backward(gain[:, c:], torch.bmm(gain[:, :c].mT, d_outputs), d_last)
        entering, d_leaving = (s.transpose(0, 1).flatten(0, 1) for s in (states[:-1], d_states[1:]))
        d_values = torch.cat((d_outputs, d_leaving), dim=1)
        d_gain = torch.bmm(d_values, entering.mT)
        d_mixed = torch.cat((d_values, -d_gain), dim=-1)
        d_mixer = torch.bmm(d_mixed, solved.mT)
        d_system = torch.bmm(inverse.mT, torch.bmm(mixer.mT, d_mixed))
        d_lower = torch.bmm(d_system, solved.mT).tril_(-1)
        d_beta = (d_system * source).sum(-1, keepdim=True).sub_((d_lower * inner).sum(-1, keepdim=True))
        d_source = d_system.mul_(beta)
        d_dots = torch.cat((d_lower.mul_(beta).neg_(), d_mixer[:, :c].tril()), dim=1)
        d_left, d_right = torch.bmm(d_dots, right), torch.bmm(d_dots.mT, left)
        d_q = (d_left[:, c:] * rise).addcmul_(d_gain[:, :c], decay)
        # Keys grow with G on one side of every product and shrink on the other; so do the gradients to G.
        d_k_up = (d_left[:, :c] * rise).addcmul_(d_source[..., dv:], decay)
        d_k_tail = d_mixer[:, c:].mT * tail
        d_k_down = (d_right * fall).add_(d_k_tail)
        d_total = (d_q * q).addcmul_(d_k_up - d_k_down, k)
        d_total[:, -1] += (d_k_tail * k).sum(1).addcmul_(d_gain[:, c:].diagonal(dim1=1, dim2=2), decay[:, -1])
        ones = torch.ones(c, c, dtype=k.dtype, device=k.device).triu()
        return d_q, d_k_up.add_(d_k_down), d_source[..., :dv], ones @ d_total, d_beta, d_states[0]


def _scan(gain: Tensor, constant: Tensor, state: Tensor) -> Tensor:
    """States [tiles + 1, R, dk, dv] of S' = M S + N over each row's tiles: gain M, constant N [Z, dk, .]."""
    rows = state.shape[0]
    gain, constant = gain.unflatten(0, (rows, -1)), constant.unflatten(0, (rows, -1))
    states = state.new_empty(gain.shape[1] + 1, *state.shape)
    states[0] = state
    for i in range(gain.shape[1]):
        torch.baddbmm(constant[:, i], gain[:, i], states[i], out=states[i + 1])
    return states


def _scan_backward(gain: Tensor, d_entering: Tensor, d_last: Tensor) -> Tensor:
    """Gradients [tiles + 1, R, dk, dv] to all states, of which the outputs' share to entering ones is `d_entering`."""
    rows = d_last.shape[0]
    gain, d_entering = gain.unflatten(0, (rows, -1)), d_entering.unflatten(0, (rows, -1))
    grads = d_last.new_empty(gain.shape[1] + 1, *d_last.shape)
    grads[-1] = d_last
    for i in reversed(range(gain.shape[1])):
        torch.baddbmm(d_entering[:, i], gain[:, i].mT, grads[i + 1], out=grads[i])
    return grads
