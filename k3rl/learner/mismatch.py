"""How far the policy that sampled and the learner's own forward are apart, on tokens where it can matter.

Both multiply by the same bytes, so what is left is the difference of two orders of summation; anything larger means
stale weights, another temperature, or a token list that was changed on the way. In training it is measured on what is
trained on: episodes without a learning signal (advantage 0) never reach the learner. Legend: N positions, M MoE layers,
K experts per token, D sparse layers, S selected positions.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from k3rl.observability.histogram import Histogram, histogram

ENTROPY = 0.1  # nats: below it log-probabilities are near 0 on both sides whatever the weights


@dataclass(frozen=True, kw_only=True, slots=True)
class Figures:
    """|log p_rollout - log p_learner| over `n` tokens, and the k3 estimate of KL(rollout || learner); 0 for n = 0.

    `histogram` of the same sizes: those of many steps add up, their p99s do not.
    """

    n: int
    mean: float
    p99: float
    maximum: float
    kl: float
    histogram: Histogram

    @classmethod
    def of(cls, differences: NDArray[np.float64]) -> Figures:
        """From log p_learner - log p_rollout of each token."""
        if differences.size == 0:
            return cls(n=0, mean=0.0, p99=0.0, maximum=0.0, kl=0.0, histogram={})
        differences = np.sort(differences)  # sums that do not depend on who held which token
        size = np.sort(np.abs(differences))
        kl = float(np.mean(np.expm1(differences) - differences))
        p99 = float(np.quantile(size, 0.99))
        mean, maximum = float(size.mean()), float(size[-1])
        return cls(n=size.size, mean=mean, p99=p99, maximum=maximum, kl=kl, histogram=histogram(size))


@dataclass(frozen=True, kw_only=True, slots=True)
class Mismatch:
    """Agreement of one version's rollouts with the learner.

    all, by_domain: figures with routes and selections replayed. routes_differ, selections_differ: share of the
    recorded expert ids, and of the recorded positions of sparse attention, that the learner would not have chosen
    by itself; None where none were recorded.
    """

    version: int
    all: Figures
    by_domain: Mapping[str, Figures] = field(default_factory=dict)
    routes_differ: float | None = None
    selections_differ: float | None = None


@dataclass(kw_only=True, slots=True)
class Tally:
    """What one rank has seen so far: differences by domain index, and (differing, recorded) counts."""

    differences: dict[int, list[NDArray[np.float64]]] = field(default_factory=dict)
    routes: NDArray[np.int64] = field(default_factory=lambda: np.zeros(2, dtype=np.int64))
    selections: NDArray[np.int64] = field(default_factory=lambda: np.zeros(2, dtype=np.int64))

    def add(self, differences_N: NDArray[np.float64], domains_N: NDArray[np.int32]) -> None:
        """Differences of counted tokens and the index of each one's domain."""
        for domain in np.unique(domains_N).tolist():
            self.differences.setdefault(domain, []).append(differences_N[domains_N == domain])


def report(tallies: Sequence[Tally], domains: Sequence[str], version: int) -> Mismatch:
    """All ranks' tallies as one report; the same whatever the number of ranks."""
    by_domain = {
        name: np.concatenate([np.empty(0), *(part for t in tallies for part in t.differences.get(index, []))])
        for index, name in enumerate(domains)
    }
    routes, selections = (sum(getattr(t, kind) for t in tallies) for kind in ("routes", "selections"))
    return Mismatch(
        version=version,
        all=Figures.of(np.concatenate(list(by_domain.values()))),
        by_domain={name: Figures.of(values) for name, values in by_domain.items()},
        routes_differ=float(routes[0] / routes[1]) if routes[1] else None,
        selections_differ=float(selections[0] / selections[1]) if selections[1] else None,
    )


def routes_apart(recorded_NMK: Tensor, chosen_NMK: Tensor) -> tuple[int, int]:
    """(ids recorded but not chosen, ids recorded), order within a token aside; -1 is no record."""
    known = recorded_NMK >= 0
    found = (recorded_NMK.unsqueeze(-1) == chosen_NMK.unsqueeze(-2)).any(-1)
    return int((known & ~found).sum()), int(known.sum())


def selections_apart(recorded_NDS: Tensor, chosen_NDS: Tensor) -> tuple[int, int]:
    """(positions recorded but not chosen, positions recorded); a row of -1 alone, 'all', records none, chooses all."""
    known = recorded_NDS >= 0
    everything = (chosen_NDS < 0).all(-1, keepdim=True)
    # Membership by sorted search: an S x S comparison of every row would be the largest tensor of the step.
    ordered = chosen_NDS.sort(-1).values.contiguous()
    place = torch.searchsorted(ordered, recorded_NDS.contiguous()).clamp_(max=ordered.shape[-1] - 1)
    found = (ordered.gather(-1, place) == recorded_NDS) | everything
    return int((known & ~found).sum()), int(known.sum())
