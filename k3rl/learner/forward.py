"""One micro-batch through the model: log-probabilities of targets where the loss wants them, and what was chosen.

Legend: N packed positions, R of them with a loss weight, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from k3rl.algorithms.objectives import Signals
from k3rl.learner.mismatch import ENTROPY, Tally, routes_apart, selections_apart
from k3rl.model import Model, Output, Replay
from k3rl.types import Batch


@dataclass(frozen=True, kw_only=True, slots=True)
class Predicted:
    """rows int64 [R], positions that count; logp [R], of their targets, with gradient; entropy [R] at the sampling
    temperature and entropy_at_1 [R], nats, without; output of the model; signals of the same rows."""

    rows: Tensor
    logp: Tensor
    entropy: Tensor
    entropy_at_1: Tensor
    output: Output
    signals: Signals


def predict(model: Model, batch: Batch, temperature: float, want: Sequence[str] = ()) -> Predicted:
    """Forward with the batch's routes replayed; logits only where there is a loss weight (the head is a large part of
    a small model's cost)."""
    device = model.embed.device
    rows = np.flatnonzero(batch.loss_mask)
    # A batch that counts for nothing still runs, one row of it, so that every rank does the same collectives.
    rows = rows if rows.size else np.zeros(1, dtype=np.int64)
    at = torch.from_numpy(rows).to(device)
    output = model(
        torch.from_numpy(batch.tokens).to(device),
        torch.from_numpy(batch.cu_seqlens).to(device),
        replay=replay(batch, device),
        want=want,
        logits_at=at,
    )
    logits = output.logits if temperature == 1.0 else output.logits / temperature
    logp_RV = logits.log_softmax(dim=-1)
    targets = torch.from_numpy(batch.targets[rows]).to(device)
    with torch.no_grad():
        entropy = _entropy(logp_RV)
        at_1 = entropy if temperature == 1.0 else _entropy(output.logits.log_softmax(dim=-1))
    return Predicted(
        rows=at,
        logp=logp_RV.gather(1, targets[:, None])[:, 0],
        entropy=entropy,
        entropy_at_1=at_1,
        output=output,
        signals=Signals(
            weight=torch.from_numpy(batch.loss_mask[rows]).to(device),
            advantages=torch.from_numpy(batch.advantages[rows]).to(device),
            rollout_logp=torch.from_numpy(batch.logprobs[rows]).to(device),
        ),
    )


def replay(batch: Batch, device: torch.device) -> Replay | None:
    """The batch's recorded choices; None where there are none, as in supervised training."""
    if batch.experts is None or batch.selected is None:
        return None
    experts, selected = (torch.from_numpy(array).to(device) for array in (batch.experts, batch.selected))
    return Replay(experts=experts, selected=selected if selected.numel() else None)


@torch.no_grad()
def observe(predicted: Predicted, batch: Batch, version: int, tally: Tally) -> None:
    """Add one micro-batch to the mismatch figures: tokens that the policy sampled in `version` with enough entropy,
    and, where the output holds the model's own choices, how many recorded ones are not among them."""
    rows = predicted.rows.cpu().numpy()
    counted = (batch.loss_mask[rows] > 0) & (batch.versions[rows] == version) & (batch.entropies[rows] > ENTROPY)
    differences = predicted.logp.detach().double().cpu().numpy() - batch.logprobs[rows].astype(np.float64)
    tally.add(differences[counted], batch.domains[rows][counted])
    output = predicted.output
    if batch.domains[0] < 0:  # a copy that counts for nothing
        return
    if output.own_experts is not None and batch.experts is not None:
        tally.routes += routes_apart(torch.from_numpy(batch.experts), output.own_experts.cpu())
    if output.own_selected is not None and batch.selected is not None:
        tally.selections += selections_apart(torch.from_numpy(batch.selected), output.own_selected.cpu())


def _entropy(logp_RV: Tensor) -> Tensor:
    """Entropy in nats of each row; impossible tokens add 0."""
    return -(logp_RV.exp() * logp_RV.clamp(min=torch.finfo(logp_RV.dtype).min)).sum(dim=-1)
