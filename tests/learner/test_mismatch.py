"""Mismatch figures against plain Python, and independence of ranks."""

import math
import random
import statistics

import numpy as np
import pytest
import torch

from k3rl.learner.mismatch import Figures, Tally, report, routes_apart, selections_apart
from k3rl.observability.histogram import quantile


def test_figures_equal_plain_python() -> None:
    rng = random.Random(0)
    differences = [rng.gauss(0, 0.02) for _ in range(1001)]
    got = Figures.of(np.array(differences))
    size = sorted(abs(d) for d in differences)
    assert got.n == 1001
    assert got.mean == pytest.approx(statistics.fmean(size), rel=1e-12)
    assert got.p99 == pytest.approx(size[990], rel=1e-12), "1001 values: index 0.99 * 1000"
    assert got.maximum == size[-1]
    assert sum(got.histogram.values()) == 1001
    assert quantile(got.histogram, 0.99) == pytest.approx(size[990], rel=0.13), "bins are 12% wide"
    assert got.kl == pytest.approx(statistics.fmean(math.exp(d) - 1 - d for d in differences), rel=1e-9)
    assert Figures.of(np.empty(0)) == Figures(n=0, mean=0.0, p99=0.0, maximum=0.0, kl=0.0, histogram={})


def test_the_report_does_not_depend_on_ranks() -> None:
    rng = np.random.default_rng(0)
    values, domains = rng.normal(size=300), rng.integers(0, 2, 300).astype(np.int32)
    one = Tally(routes=np.array([3, 100]), selections=np.array([0, 0]))
    one.add(values, domains)
    two = [Tally(routes=np.array([1, 60])), Tally(routes=np.array([2, 40]))]
    two[0].add(values[:90], domains[:90])
    two[1].add(values[90:], domains[90:])
    whole, split = report([one], ["a", "b"], 4), report(two, ["a", "b"], 4)
    assert whole == split
    assert whole.routes_differ == 0.03
    assert whole.selections_differ is None
    assert whole.by_domain["a"].n + whole.by_domain["b"].n == whole.all.n == 300


def test_a_domain_without_tokens_is_told_as_such() -> None:
    tally = Tally()
    tally.add(np.array([0.5]), np.array([1], dtype=np.int32))
    got = report([tally], ["a", "b"], 0)
    assert got.by_domain["a"].n == 0
    assert got.by_domain["b"].maximum == 0.5


def test_routes_and_selections_are_compared_as_sets() -> None:
    rng = random.Random(1)
    for _ in range(50):
        recorded = [rng.sample(range(12), 4) for _ in range(6)]
        chosen = [rng.sample(range(12), 4) for _ in range(6)]
        recorded[0] = [-1] * 4
        chosen[1] = [-1] * 4
        apart = sum(len(set(r) - set(c)) for r, c in zip(recorded[1:], chosen[1:], strict=True))
        r, c = torch.tensor(recorded)[:, None], torch.tensor(chosen)[:, None]
        assert routes_apart(r, c) == (apart, 20)
        without_all = apart - 4  # a row of -1 alone chooses every position
        assert selections_apart(r, c) == (without_all, 20)


def test_padded_selections_count_what_was_recorded() -> None:
    recorded = torch.tensor([[[0, 2, -1, -1]], [[0, 1, 2, 3]]])
    chosen = torch.tensor([[[0, 1, -1, -1]], [[0, 1, 2, 3]]])
    assert selections_apart(recorded, chosen) == (1, 6)
