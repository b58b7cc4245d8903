"""The definition of Kimi Delta Attention, one token at a time, in plain torch.

State S [..., dk, dv]; per token S' = Diag(exp g) S, S = S' + beta k (v - S'^T k)^T, o = S^T q.
"""

from __future__ import annotations

import torch
from torch import Tensor


def step_kda(queries: Tensor, keys: Tensor, values: Tensor, gates: Tensor, betas: Tensor, state: Tensor) -> Tensor:
    """Advance `state` [R, dk, dv] in place by one token and return outputs [R, dv].

    queries, keys, gates (log decay, <= 0) [R, dk], values [R, dv], betas [R]. With gate 0 and beta 0 the state is left
    exactly as it was, which is how inactive rows of a batch are held.
    """
    state.mul_(gates.exp().unsqueeze(-1))
    recalled = torch.bmm(keys.unsqueeze(1), state)
    update = (values.unsqueeze(1) - recalled).mul_(betas[:, None, None])
    state.baddbmm_(keys.unsqueeze(2), update)
    return torch.bmm(queries.unsqueeze(1), state).squeeze(1)


def recurrent_kda(
    queries: Tensor, keys: Tensor, values: Tensor, gates: Tensor, betas: Tensor, state: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """The recurrence over a sequence, differentiable; the reference of `chunk_kda`, with its signature.

    queries, keys, gates [R, L, dk], values [R, L, dv], betas [R, L]; returns outputs [R, L, dv] and the last state.
    """
    if state is None:
        state = values.new_zeros(values.shape[0], keys.shape[-1], values.shape[-1])
    outputs = []
    for t in range(keys.shape[1]):
        decayed = state * gates[:, t].exp().unsqueeze(-1)
        recalled = (keys[:, t].unsqueeze(1) @ decayed).squeeze(1)
        update = (values[:, t] - recalled) * betas[:, t, None]
        state = decayed + keys[:, t].unsqueeze(2) * update.unsqueeze(1)
        outputs.append((queries[:, t].unsqueeze(1) @ state).squeeze(1))
    return torch.stack(outputs, dim=1), state
