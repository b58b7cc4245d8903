"""From scored trajectories and their advantages to what the learner trains on."""

from __future__ import annotations

import numpy as np

from k3rl.types import Sample, Scored, TokenLog


def to_samples(scored: Scored, advantage: float, *, per_sequence: bool = False) -> list[Sample]:
    """One sample per token log; every sampled token gets the trajectory's advantage. Untrainable ones give none.

    per_sequence: a trajectory's tokens share a weight of 1, so that the step's loss is the mean over trajectories of
    their means over tokens (GRPO, arXiv 2402.03300, equation 3); else every token weighs 1 (DAPO, arXiv 2503.14476).
    """
    trajectory = scored.trajectory
    if not trajectory.stop.trainable or scored.score is None:
        return []
    weight = 1.0 / max(sum(int(log.mask.sum()) for log in trajectory.logs), 1) if per_sequence else 1.0
    key = f"{trajectory.task.id}#{trajectory.sample}"
    return [
        _sample(
            log,
            key=key if len(trajectory.logs) == 1 else f"{key}.{part}",
            domain=trajectory.task.domain,
            advantage=advantage,
            weight=weight,
        )
        for part, log in enumerate(trajectory.logs)
        if log.mask.any()
    ]


def demonstration(log: TokenLog, *, key: str, domain: str, prompt_weight: float) -> Sample:
    """A sample for supervised training: sampled tokens weigh 1, given ones `prompt_weight`. No routes to replay."""
    weights = np.where(log.mask, 1.0, prompt_weight).astype(np.float32)
    return Sample(
        key=key,
        domain=domain,
        tokens=log.tokens,
        loss_mask=weights,
        advantages=np.zeros_like(weights),
        logprobs=log.logprobs,
        entropies=log.entropies,
        versions=log.versions,
    )


def _sample(log: TokenLog, *, key: str, domain: str, advantage: float, weight: float) -> Sample:
    mask = log.mask.astype(np.float32)
    return Sample(
        key=key,
        domain=domain,
        tokens=log.tokens,
        loss_mask=mask * np.float32(weight),
        advantages=mask * np.float32(advantage),
        logprobs=log.logprobs,
        entropies=log.entropies,
        versions=log.versions,
        routes=log.routes,
    )
