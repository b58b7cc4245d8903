"""What is optimized: pure functions from per-token log-probabilities and signals to a loss and its metrics.

An objective sees one micro-batch at a time and divides by the denominator of the whole optimizer step, so the sum
over micro-batches and ranks is the loss of the step whatever the split. Legend: N packed positions, each predicting
one target. Three policies: `rollout` sampled the tokens, a step must stay near `proximal`, `current` is trained.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, Protocol

import torch
from torch import Tensor

from k3rl.errors import ConfigError


@dataclass(frozen=True, kw_only=True, slots=True)
class Signals:
    """Per-token signals of one micro-batch, float32 [N], aligned with the position that predicts the target.

    weight: the loss mask (1 counts, 0 does not, fractions are weights); advantages; rollout_logp: log-probability
    under the distribution that was sampled from.
    """

    weight: Tensor
    advantages: Tensor
    rollout_logp: Tensor


@dataclass(frozen=True, kw_only=True, slots=True)
class Loss:
    """`loss`: scalar with gradient, already divided by the denominator. `means`: scalars that sum, over micro-batches
    and ranks, to weighted means of the step. `maxima`: scalars of which the step's value is the largest."""

    loss: Tensor
    means: Mapping[str, Tensor]
    maxima: Mapping[str, Tensor]


class Objective(Protocol):
    """Called by the learner for each micro-batch."""

    @property
    def temperature(self) -> float:
        """Logits are divided by it before log-probabilities are taken: the sampling temperature."""

    def __call__(self, logp_N: Tensor, signals: Signals, denominator: float) -> Loss:
        """logp_N: float [N], log-probability of the targets under the current policy, with gradient.
        denominator: sum of `weight` over the whole optimizer step, all micro-batches and ranks; positive."""


def _check_temperature(temperature: float) -> None:
    if not temperature > 0.0:
        raise ConfigError(f"temperature must be positive, got {temperature}: greedy samples have no gradient")


@dataclass(frozen=True, kw_only=True, slots=True)
class SFT:
    """Weighted cross-entropy, -sum(weight * logp) / denominator. Rejection sampling: this, on what was kept."""

    temperature: float = 1.0

    def __post_init__(self) -> None:
        _check_temperature(self.temperature)

    def __call__(self, logp_N: Tensor, signals: Signals, denominator: float) -> Loss:
        loss = _weighted_sum(-logp_N, signals.weight) / denominator
        return Loss(loss=loss, means={"nll": loss.detach()}, maxima={})


@dataclass(frozen=True, kw_only=True, slots=True)
class GRPO:
    """Clipped policy gradient, -sum(weight * min(r A, clip(r, 1 - clip_low, 1 + clip_high) A)) / denominator.

    r = exp(logp - proximal). The asymmetric clip keeps room for rare tokens to rise (DAPO, arXiv 2503.14476, eq. 8);
    one denominator for the whole step; a mean per token or per trajectory is a matter of the weights.
    `proximal: rollout` states that the batch gets one update and nothing is recomputed, so the policy that sampled is
    the one that r is taken against.
    Metrics: ratio (mean), clip_fraction (tokens whose gradient the clip stopped), kl (k3 estimate of
    KL(rollout || current), non-negative), ratio_max.
    """

    clip_low: float = 0.2
    clip_high: float = 0.28
    temperature: float = 1.0
    proximal: Literal["rollout"] = "rollout"

    def __post_init__(self) -> None:
        _check_temperature(self.temperature)
        if not 0.0 < self.clip_low < 1.0 or not self.clip_high > 0.0:
            raise ConfigError(
                f"clip_low must be in (0, 1) and clip_high positive, got {self.clip_low} and {self.clip_high}"
            )
        if self.proximal != "rollout":
            raise ConfigError(
                f"proximal: {self.proximal!r} is not known; with one update per batch it is 'rollout', and a "
                "correction for rollout mismatch on top of it would count the same ratio twice"
            )

    def __call__(self, logp_N: Tensor, signals: Signals, denominator: float) -> Loss:
        weight, advantages = signals.weight, signals.advantages
        counted = weight > 0
        # Outside the mask there is no rollout log-probability; 0 there keeps exp finite and the gradient zero.
        log_ratio = torch.where(counted, logp_N - signals.rollout_logp, 0.0)
        ratio = log_ratio.exp()
        clipped = ratio.clamp(1.0 - self.clip_low, 1.0 + self.clip_high)
        gain = torch.minimum(ratio * advantages, clipped * advantages)
        loss = _weighted_sum(-gain, weight) / denominator
        with torch.no_grad():
            stopped = clipped * advantages < ratio * advantages
            means = {
                "ratio": _weighted_sum(ratio, weight) / denominator,
                "clip_fraction": _weighted_sum(stopped.to(ratio.dtype), weight) / denominator,
                "kl": _weighted_sum(torch.expm1(log_ratio) - log_ratio, weight) / denominator,
            }
            maxima = {"ratio_max": torch.where(counted, ratio, 0.0).max()}
        return Loss(loss=loss, means=means, maxima=maxima)


def _weighted_sum(values_N: Tensor, weight_N: Tensor) -> Tensor:
    """Sum of weight * value where weight is positive: a non-finite value outside the mask must not spread."""
    return (torch.where(weight_N > 0, values_N, 0.0) * weight_N).sum()
