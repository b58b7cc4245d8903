"""From scores to advantages: a baseline per group, then one scale per domain, so that no domain owns the gradient.

Numpy only: this runs beside the driver. Legend: G groups, S samples per group. A missing reward (an episode that our
own infrastructure failed) is NaN: it moves no baseline, no scale, and gets advantage 0.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from k3rl.errors import ConfigError, UserError
from k3rl.types import Json


@dataclass(frozen=True, kw_only=True, slots=True)
class AdvantageConfig:
    """`AdvantageConfig()` is the joint default: group mean, then the running RMS of the domain.

    divide_by_std: divide each group by its own standard deviation (GRPO as published; off is Dr.GRPO).
    domain_scaling: divide by the domain's running RMS; it makes sense only where groups are not divided already.
    decay: of the running mean square, per optimizer step. floor: smallest RMS divided by, in units of reward, so that
    the few live groups of a domain that is nearly always right or wrong are not blown up. skip_truncated: failures
    that ran into a limit get advantage 0 (overlong filtering, arXiv 2503.14476): how they wandered says little about
    what was wrong, and they are the longest.
    """

    divide_by_std: bool = False
    epsilon: float = 1e-6
    domain_scaling: bool = True
    decay: float = 0.9
    floor: float = 0.1
    skip_truncated: bool = False

    def __post_init__(self) -> None:
        if self.divide_by_std and self.domain_scaling:
            raise ConfigError(
                "divide_by_std and domain_scaling normalise the same thing twice: choose one "
                "(domain_scaling: true keeps the size of a group's signal and equalises domains)"
            )
        if not 0.0 <= self.decay < 1.0:
            raise ConfigError(f"decay must be in [0, 1), got {self.decay}")
        if self.floor <= 0.0 or self.epsilon <= 0.0:
            raise ConfigError(f"floor and epsilon must be positive, got {self.floor} and {self.epsilon}")


@dataclass(frozen=True, kw_only=True, slots=True)
class DomainScale:
    """Running mean square of group-centred advantages by domain: the only state of joint normalisation.

    `DomainScale(total={"office": 0.019}, weight={"office": 0.1})`: both decay alike, their ratio is the bias-corrected
    mean square (as in Adam). Part of a checkpoint, as JSON.
    """

    total: Mapping[str, float] = field(default_factory=dict)
    weight: Mapping[str, float] = field(default_factory=dict)

    def rms(self, domain: str) -> float:
        """Root mean square of the domain's advantages so far, in units of reward; 0 before any was seen."""
        weight = self.weight.get(domain, 0.0)
        return math.sqrt(self.total[domain] / weight) if weight > 0.0 else 0.0

    def updated(self, domain: str, advantages: NDArray[np.float64], decay: float) -> DomainScale:
        """The state after one step's advantages of one domain, missing ones taken out; none leaves it as it is."""
        if advantages.size == 0:
            return self
        mean_square = float(np.mean(np.square(advantages)))
        total = decay * self.total.get(domain, 0.0) + (1.0 - decay) * mean_square
        weight = decay * self.weight.get(domain, 0.0) + (1.0 - decay)
        return DomainScale(total={**self.total, domain: total}, weight={**self.weight, domain: weight})

    def to_json(self) -> Json:
        """Plain values for a checkpoint."""
        return {"total": dict(self.total), "weight": dict(self.weight)}

    @classmethod
    def from_json(cls, value: Json) -> DomainScale:
        """The inverse of `to_json`."""
        return cls(total=dict(value["total"]), weight=dict(value["weight"]))


@dataclass(frozen=True, kw_only=True, slots=True)
class Group:
    """The rewards of the samples of one task, and which of them ran into a limit (none if not given):
    `Group(domain="office", rewards=(1.0, 0.0, None, 1.0))`."""

    domain: str
    rewards: tuple[float | None, ...]
    truncated: tuple[bool, ...] = ()


def group_advantages(
    rewards_GS: NDArray[np.float64], *, divide_by_std: bool, epsilon: float = 1e-6
) -> NDArray[np.float64]:
    """Rewards minus their group's mean, float64 [G, S]; optionally over (standard deviation + epsilon).

    NaN marks a missing reward: left out of mean and deviation, advantage 0. A group whose rewards are all equal (or
    that has only one) gives exact zeros. The deviation is the population's. Raises UserError on an infinite reward.
    GRPO: arXiv 2402.03300, equation 3 onward; without the deviation: arXiv 2503.20783.
    """
    rewards_GS = np.asarray(rewards_GS, dtype=np.float64)
    if rewards_GS.ndim != 2:
        raise UserError(f"rewards must be [groups, samples], got shape {rewards_GS.shape}")
    if np.isinf(rewards_GS).any():
        raise UserError(f"infinite reward in group {int(np.argwhere(np.isinf(rewards_GS))[0, 0])}")
    present_GS = ~np.isnan(rewards_GS)
    count_G1 = np.maximum(present_GS.sum(axis=1, keepdims=True), 1)
    filled_GS = np.where(present_GS, rewards_GS, 0.0)
    mean_G1 = filled_GS.sum(axis=1, keepdims=True) / count_G1
    # Equal rewards must give zeros exactly: their computed mean may be off by a rounding.
    highest_G1 = np.where(present_GS, rewards_GS, -np.inf).max(axis=1, keepdims=True, initial=-np.inf)
    lowest_G1 = np.where(present_GS, rewards_GS, np.inf).min(axis=1, keepdims=True, initial=np.inf)
    live_GS = present_GS & (highest_G1 > lowest_G1)
    centred_GS = np.where(live_GS, filled_GS - mean_G1, 0.0)
    if not divide_by_std:
        return centred_GS
    std_G1 = np.sqrt(np.square(centred_GS).sum(axis=1, keepdims=True) / count_G1)
    normalised_GS: NDArray[np.float64] = centred_GS / (std_G1 + epsilon)
    return normalised_GS


def joint_advantages(
    groups: Sequence[Group], scale: DomainScale, config: AdvantageConfig
) -> tuple[tuple[NDArray[np.float64], ...], DomainScale]:
    """Advantages of one step's groups (one array per group, in order), and the scale to start the next step from.

    The running RMS takes this step in before it divides, groups without any spread included: a domain where few
    groups are live has a small RMS, which the floor bounds. Domains are taken in alphabetical order, so the result
    does not depend on the order in which groups arrive.
    """
    centred = [
        group_advantages(_row(group), divide_by_std=config.divide_by_std, epsilon=config.epsilon)[0] for group in groups
    ]
    if config.domain_scaling:
        for domain in sorted({group.domain for group in groups}):
            seen = [a[~np.isnan(_row(g)[0])] for g, a in zip(groups, centred, strict=True) if g.domain == domain]
            scale = scale.updated(domain, np.sort(np.concatenate(seen)), config.decay)
        centred = [a / max(scale.rms(g.domain), config.floor) for g, a in zip(groups, centred, strict=True)]
    if config.skip_truncated:
        centred = [_without_truncated(a, g) for g, a in zip(groups, centred, strict=True)]
    return tuple(centred), scale


def _without_truncated(advantages: NDArray[np.float64], group: Group) -> NDArray[np.float64]:
    skipped = np.array(group.truncated or [False] * len(advantages)) & (advantages < 0)
    return np.where(skipped, 0.0, advantages)


def _row(group: Group) -> NDArray[np.float64]:
    """The group's rewards as [1, S] with NaN for None; a NaN that a reward function made is refused, not masked."""
    values = [math.nan if reward is None else float(reward) for reward in group.rewards]
    if any(reward is not None and math.isnan(value) for reward, value in zip(group.rewards, values, strict=True)):
        raise UserError(f"a reward of domain {group.domain!r} is NaN: fix the reward function, or give None")
    return np.array([values], dtype=np.float64)
