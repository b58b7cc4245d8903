"""What a set of evaluated tasks says about a policy, with 95% intervals.

The unit is the task, never the sample: samples of one task are alike, and counting them as independent makes intervals
too short (by half and more where tasks differ much). Which interval for what, and why:

- a mean of per-task values in [0, 1] (sampled success, greedy, pass@k): Wilson's interval at the effective number of
  observations n p (1 - p) / s^2, s^2 being the variance between the n tasks, as for clustered surveys (Korn and
  Graubard 1998; Dean and Pagano 2015). It needs no random numbers, stays in [0, 1], and keeps its width where every
  task failed, where t intervals and the bootstrap shrink to a point. For one 0 or 1 a task it is Wilson's own.
- a paired difference: Student's t over per-task differences with one +1 and one -1 added (Bonett and Price 2012, stated
  there for proportions), so that "nothing changed on 200 tasks" is not certainty.
- an average over domains: each domain is a stratum with the same weight; MOVER (Zou and Donner 2008) combines the
  strata's intervals, which need not be symmetric.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import TypeVar

import numpy as np

SUCCESS = 1.0
"""The reward from which an episode counts as a success."""

Z = 1.959963984540054
"""The normal distribution's 97.5% point."""

Key = TypeVar("Key", bound=Hashable)


@dataclass(frozen=True, kw_only=True, slots=True)
class TaskResult:
    """One task under one policy.

    `TaskResult(task_id="office/test/sum/2/7-0", domain="office", split="test", family="sum", level=2, tier="low",
    sampled=(1.0, 0.0, 1.0, 1.0), greedy=1.0, tokens=61.5, turns=2.5, thinking=0.0, malformed=0.0)`. `sampled` holds
    one reward per sample at training temperature, `greedy` the reward at temperature 0. The rest are means over the
    samples, per episode: sampled tokens, assistant turns, thinking tokens, and the share of turns whose markup or
    tool call did not parse.
    """

    task_id: str
    domain: str
    split: str
    family: str
    level: int
    tier: str
    sampled: tuple[float, ...]
    greedy: float | None
    tokens: float
    turns: float
    thinking: float
    malformed: float

    @property
    def successes(self) -> int:
        """How many samples reached full reward."""
        return sum(reward >= SUCCESS for reward in self.sampled)


@dataclass(frozen=True, kw_only=True, slots=True)
class Estimate:
    """A mean over `n` tasks with its 95% interval: `Estimate(mean=0.41, low=0.35, high=0.47, n=200)`."""

    mean: float
    low: float
    high: float
    n: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Measure:
    """One number per task, in [0, 1]. `value` gives None where a task lacks it; `repeats` counts how many independent
    draws that number averages, which bounds the effective number of observations."""

    name: str
    value: Callable[[TaskResult], float | None]
    repeats: Callable[[TaskResult], int]


def pass_at(n: int, successes: int, k: int) -> float:
    """The chance that k of n samples, drawn without replacement, hold a success: 1 - C(n - c, k) / C(n, k).

    Unbiased for the chance that k fresh samples hold one (Chen et al. 2021, arXiv:2107.03374, section 2.1).
    """
    if not 0 < k <= n or not 0 <= successes <= n:
        raise ValueError(f"pass@{k} of {successes} successes in {n} samples: needs 0 < k <= n and 0 <= successes <= n")
    return 1.0 - math.comb(n - successes, k) / math.comb(n, k)


def pass_measure(k: int) -> Measure:
    """pass@k by task; tasks with fewer than k samples lack it."""
    return Measure(
        name=f"pass{k}",
        value=lambda r: pass_at(len(r.sampled), r.successes, k) if len(r.sampled) >= k else None,
        repeats=lambda r: len(r.sampled) // k,
    )


SAMPLED = Measure(
    name="sampled",
    value=lambda r: r.successes / len(r.sampled) if r.sampled else None,
    repeats=lambda r: len(r.sampled),
)
GREEDY = Measure(
    name="greedy", value=lambda r: None if r.greedy is None else float(r.greedy >= SUCCESS), repeats=lambda r: 1
)
PASS8 = pass_measure(8)
MEASURES = (SAMPLED, GREEDY, PASS8)
"""What every report shows."""


@lru_cache(maxsize=1024)
def t_quantile(degrees: int) -> float:
    """Student's t: the point with 97.5% below it.

    Bisection on the finite series of P(|T| <= t) for whole degrees of freedom (Abramowitz and Stegun, 26.7.3 and
    26.7.4); beyond 10,000 the normal point, which differs by less than 3e-4.
    """
    if degrees < 1:
        raise ValueError(f"a t interval needs at least 1 degree of freedom, not {degrees}")
    if degrees > 10_000:
        return Z
    low, high = 0.0, 16.0  # the point for 1 degree is 12.7
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if _central(middle, degrees) < 0.95 else (low, middle)
    return (low + high) / 2


def _central(t: float, degrees: int) -> float:
    """P(|T| <= t)."""
    theta = math.atan(t / math.sqrt(degrees))
    cosine, sine = math.cos(theta), math.sin(theta)
    odd = degrees % 2
    term = cosine if odd else 1.0
    total = 0.0
    for power in range(odd, degrees - 1, 2):
        total += term
        term *= cosine * cosine * (power + 1) / (power + 2)
    return 2 / math.pi * (theta + sine * total) if odd else sine * total


def wilson(mean: float, observations: float, quantile: float = Z) -> tuple[float, float]:
    """Wilson's score interval of a proportion from that many independent observations."""
    slack = quantile * quantile / observations
    centre = (mean + slack / 2) / (1 + slack)
    half = quantile / (1 + slack) * math.sqrt(mean * (1 - mean) / observations + slack / (4 * observations))
    return max(0.0, min(centre - half, mean)), min(1.0, max(centre + half, mean))


def clustered(values: Sequence[float], draws: int) -> Estimate:
    """The mean of one value in [0, 1] per task, `draws` being the independent draws behind all of them together.

    The variance between tasks is taken with one task of 0 and one of 1 added: where nearly every task failed, what few
    there are say nothing on how alike the samples of a task are, and this then counts tasks.
    """
    if not values:
        raise ValueError("no task to average over")
    n = len(values)
    padded = np.array([*values, 0.0, 1.0])
    observations = n * float(padded.mean()) * float(1 - padded.mean()) / float(padded.var())
    mean = float(np.mean(values))
    quantile = Z if draws <= n else t_quantile(max(n - 1, 1))  # one draw a task: a plain proportion
    low, high = wilson(mean, min(observations, float(max(draws, n))), quantile)
    return Estimate(mean=mean, low=low, high=high, n=n)


def estimate(results: Iterable[TaskResult], measure: Measure) -> Estimate:
    """The measure's mean over the tasks that have it, every task counting the same."""
    values, draws = [], 0
    for result in results:
        value = measure.value(result)
        if value is not None:
            values.append(value)
            draws += measure.repeats(result)
    if not values:
        raise ValueError(f"no task has {measure.name}: evaluate with enough samples per task")
    return clustered(values, draws)


def paired(before: Iterable[TaskResult], after: Iterable[TaskResult], measure: Measure) -> Estimate:
    """The mean of after - before over the tasks that both evaluations have, matched by task id."""
    first, second = _by_task(before, measure), _by_task(after, measure)
    differences = [second[task] - value for task, value in first.items() if task in second]
    if not differences:
        raise ValueError(f"the two evaluations share no task with {measure.name}: evaluate both on the same task list")
    n = len(differences)
    padded = np.array([*differences, 1.0, -1.0])
    half = t_quantile(n + 1) * float(padded.std(ddof=1)) / math.sqrt(n + 2)
    centre = float(padded.mean())
    mean = float(np.mean(differences))
    return Estimate(mean=mean, low=max(-1.0, centre - half), high=min(1.0, centre + half), n=n)


def average(estimates: Sequence[Estimate]) -> Estimate:
    """The unweighted mean of independent estimates, one per domain; n counts tasks over all of them."""
    if not estimates:
        raise ValueError("no domain to average over")
    share = 1 / len(estimates)
    mean = share * math.fsum(e.mean for e in estimates)
    below = share * math.sqrt(math.fsum((e.mean - e.low) ** 2 for e in estimates))
    above = share * math.sqrt(math.fsum((e.high - e.mean) ** 2 for e in estimates))
    return Estimate(mean=mean, low=mean - below, high=mean + above, n=sum(e.n for e in estimates))


def group(results: Iterable[TaskResult], key: Callable[[TaskResult], Key]) -> dict[Key, list[TaskResult]]:
    """Results by domain, level, family, tier ..., keys in order: `group(results, lambda r: r.level)`."""
    groups: dict[Key, list[TaskResult]] = {}
    for result in results:
        groups.setdefault(key(result), []).append(result)
    return dict(sorted(groups.items()))


def has(results: Iterable[TaskResult], measure: Measure) -> bool:
    """Whether any task has the measure."""
    return any(measure.value(result) is not None for result in results)


def _by_task(results: Iterable[TaskResult], measure: Measure) -> dict[str, float]:
    values: dict[str, float] = {}
    for result in results:
        if result.task_id in values:
            raise ValueError(f"task {result.task_id!r} stands twice in one evaluation")
        value = measure.value(result)
        if value is not None:
            values[result.task_id] = value
    return values
