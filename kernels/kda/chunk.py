"""The chunk form of Kimi Delta Attention: matrix products within tiles, one short recurrence over tiles.

With G the inclusive cumulative log decay of a tile and A_ij = beta_i sum_d k_id k_jd exp(G_id - G_jd) for i > j,
(I + A) X = Diag(beta) [V, exp(G) K] gives X = [U, W], and with P_ij = sum_d q_id k_jd exp(G_id - G_jd) for i >= j and
Kt = exp(G_last - G) K everything is linear in the state S that enters the tile:

    O  = P U + (exp(G) Q - P W) S          S' = Kt^T U + (Diag(exp G_last) - Kt^T W) S

so the recurrence over tiles is one product per tile. exp(G_i - G_j) is split as exp(G_i - G_m) exp(G_m - G_j) around
the tile's middle m: at 16 tokens and 5 nats a token each factor stays under 40 nats.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

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
    steepest span allows. Tokens with gate 0, beta 0 and key 0 leave the state unchanged.
    """
    if keys.shape[1] % TILE:
        raise ValueError(f"chunk_kda: length {keys.shape[1]} is not a multiple of {TILE}")
    tile = TILE if bounded else _tile(gates)
    q, k, v, g = (x.unflatten(1, (-1, tile)) for x in (queries, keys, values, gates))
    beta = betas.unflatten(1, (-1, tile)).unsqueeze(-1)
    total = g.cumsum(dim=2)
    last = total[:, :, -1:]
    decay = total.exp()
    centred = total - total[:, :, tile // 2 - 1 : tile // 2] if tile > 1 else total - total
    rise, fall = centred.exp(), (-centred).exp()
    k_fall = (k * fall).mT
    lower, scores = (torch.cat((k * rise * beta, q * rise), dim=2) @ k_fall).split(tile, dim=2)
    scores = scores.tril()
    x = torch.linalg.solve_triangular(
        lower, torch.cat((v, k * decay), dim=-1) * beta, upper=False, unitriangular=True
    )
    k_last = (k * (last - total).exp()).mT
    constant, linear = (torch.cat((scores, k_last), dim=2) @ x).split((v.shape[-1], k.shape[-1]), dim=-1)
    gain = torch.cat((q * decay, torch.diag_embed(last.squeeze(2).exp())), dim=2) - linear
    entering, final = _scan(gain[:, :, tile:], constant[:, :, tile:], state)
    outputs = constant[:, :, :tile] + gain[:, :, :tile] @ entering
    return outputs.flatten(1, 2), final


def _tile(gates: Tensor) -> int:
    """The largest tile of 16, 8, ..., 1 within which no channel decays by more than SPAN nats."""
    for tile in (16, 8, 4, 2):
        spans = gates.detach().unflatten(1, (-1, tile))[:, :, 1:].sum(dim=2)
        if float(spans.min()) >= -SPAN:
            return tile
    return 1


class _Scan(torch.autograd.Function):
    """S_{c+1} = M_c S_c + N_c over tiles c; returns the states entering each tile and the last one."""

    @staticmethod
    def forward(ctx: Any, gain: Tensor, constant: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
        tiles = gain.shape[1]
        states = constant.new_empty(tiles + 1, *state.shape)
        states[0] = state
        for c in range(tiles):
            torch.baddbmm(constant[:, c], gain[:, c], states[c], out=states[c + 1])
        ctx.save_for_backward(gain, states)
        return states[:-1].transpose(0, 1), states[-1]

    @staticmethod
    def backward(ctx: Any, d_entering: Tensor, d_final: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        gain, states = ctx.saved_tensors
        tiles = gain.shape[1]
        grads = states.new_empty(states.shape)
        grads[-1] = d_final
        for c in reversed(range(tiles)):
            torch.baddbmm(d_entering[:, c], gain[:, c].mT, grads[c + 1], out=grads[c])
        d_constant = grads[1:].transpose(0, 1)
        return d_constant @ states[:-1].transpose(0, 1).mT, d_constant, grads[0]


def _scan(gain: Tensor, constant: Tensor, state: Tensor | None) -> tuple[Tensor, Tensor]:
    if state is None:
        state = constant.new_zeros(constant.shape[0], *constant.shape[2:])
    return _Scan.apply(gain, constant, state)  # type: ignore[no-any-return, no-untyped-call]
