"""Estimates against enumeration, published values, float64 loops and simulated coverage."""

from __future__ import annotations

import math
from itertools import combinations
from statistics import NormalDist

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from k3rl.evaluation.statistics import (
    GREEDY,
    PASS8,
    SAMPLED,
    Estimate,
    TaskResult,
    average,
    clustered,
    estimate,
    group,
    paired,
    pass_at,
    pass_measure,
    t_quantile,
    wilson,
)


def result(task: str, rewards: list[float], greedy: float | None = None, domain: str = "office") -> TaskResult:
    return TaskResult(
        task_id=task, domain=domain, split="test", family="f", level=1, tier="low", sampled=tuple(rewards),
        greedy=greedy, tokens=10.0, turns=2.0, thinking=0.0, malformed=0.0,
    )  # fmt: skip


@pytest.mark.parametrize(("n", "k"), [(1, 1), (5, 2), (8, 8), (10, 3)])
def test_pass_at_equals_enumeration(n: int, k: int) -> None:
    for successes in range(n + 1):
        outcomes = [True] * successes + [False] * (n - successes)
        subsets = [any(chosen) for chosen in combinations(outcomes, k)]
        assert pass_at(n, successes, k) == pytest.approx(sum(subsets) / len(subsets), abs=1e-15)


def test_pass_at_is_unbiased() -> None:
    n, k, p = 10, 4, 0.17
    expected = sum(math.comb(n, c) * p**c * (1 - p) ** (n - c) * pass_at(n, c, k) for c in range(n + 1))
    assert expected == pytest.approx(1 - (1 - p) ** k, abs=1e-14)


@pytest.mark.parametrize(("n", "c", "k"), [(4, 1, 5), (4, 5, 2), (4, 1, 0), (4, -1, 2)])
def test_pass_at_refuses_the_impossible(n: int, c: int, k: int) -> None:
    with pytest.raises(ValueError, match=r"pass@"):
        pass_at(n, c, k)


def test_t_quantile_against_published_values() -> None:
    # Student's t, 97.5% points, as tabulated (e.g. NIST/SEMATECH handbook 1.3.6.7.2).
    table = {1: 12.706, 2: 4.303, 3: 3.182, 4: 2.776, 5: 2.571, 10: 2.228, 29: 2.045, 30: 2.042, 60: 2.000, 100: 1.984}
    for degrees, point in table.items():
        assert t_quantile(degrees) == pytest.approx(point, abs=6e-4)
    assert t_quantile(20_000) == pytest.approx(NormalDist().inv_cdf(0.975), abs=1e-12)
    assert t_quantile(10_000) == pytest.approx(t_quantile(10_001), abs=3e-4)
    with pytest.raises(ValueError, match="degree"):
        t_quantile(0)


def test_t_quantile_against_integration() -> None:
    for degrees in (1, 2, 7, 199):
        scale = math.exp(math.lgamma((degrees + 1) / 2) - math.lgamma(degrees / 2)) / math.sqrt(degrees * math.pi)
        grid = np.linspace(0, t_quantile(degrees), 200_001)
        density = scale * (1 + grid**2 / degrees) ** (-(degrees + 1) / 2)
        assert 0.5 + float(np.trapezoid(density, grid)) == pytest.approx(0.975, abs=1e-8)


def test_greedy_has_wilsons_interval() -> None:
    # Newcombe (1998), table I, method 3: 81/263, 15/148, 0/20, 1/29.
    cases = {
        (81, 263): (0.2553, 0.3662),
        (15, 148): (0.0624, 0.1605),
        (0, 20): (0.0, 0.1611),
        (1, 29): (0.0061, 0.1718),
    }
    for (hits, n), (low, high) in cases.items():
        found = estimate([result(str(i), [], float(i < hits)) for i in range(n)], GREEDY)
        assert (found.mean, found.n) == (pytest.approx(hits / n), n)
        assert (found.low, found.high) == (pytest.approx(low, abs=6e-5), pytest.approx(high, abs=6e-5))


def test_sampled_interval_is_the_formula_of_the_docstring() -> None:
    rewards = [[1.0, 0.0, 0.5, 1.0], [0.0] * 4, [1.0] * 4, [0.99, 1.0, 0.0, 0.0], [0.0, 0.0, 1.0, 0.0]]
    means = [0.5, 0.0, 1.0, 0.25, 0.25]
    padded = [*means, 0.0, 1.0]
    centre = sum(padded) / 7
    variance = sum((m - centre) ** 2 for m in padded) / 7
    observations = 5 * centre * (1 - centre) / variance
    t, p = 2.7764451, 0.4
    root = t * math.sqrt(p * (1 - p) / observations + t * t / (4 * observations**2))
    low = (p + t * t / (2 * observations) - root) / (1 + t * t / observations)
    high = (p + t * t / (2 * observations) + root) / (1 + t * t / observations)
    found = estimate([result(str(i), r) for i, r in enumerate(rewards)], SAMPLED)
    assert found == Estimate(mean=pytest.approx(p), low=pytest.approx(low), high=pytest.approx(high), n=5)


def test_repeated_samples_of_alike_tasks_are_not_counted_as_evidence() -> None:
    """Tasks that always or never succeed: 8 samples a task say no more than one."""
    once = estimate([result(str(i), [float(i % 2)]) for i in range(100)], SAMPLED)
    eight = estimate([result(str(i), [float(i % 2)] * 8) for i in range(100)], SAMPLED)
    assert eight.high - eight.low >= once.high - once.low
    independent = wilson(0.5, 800)
    assert eight.high - eight.low > 2.5 * (independent[1] - independent[0])


def test_intervals_keep_their_width_at_the_ends() -> None:
    for reward in (0.0, 1.0):
        found = estimate([result(str(i), [reward] * 8) for i in range(200)], SAMPLED)
        assert found.high - found.low == pytest.approx(0.019, abs=5e-4)
        assert found.low <= found.mean <= found.high
    nothing = clustered([0.0] * 200, 1600)
    single = clustered([1 / 8, *[0.0] * 199], 1600)
    assert single.high > 0.95 * nothing.high  # a single success does not make the interval collapse


@given(st.lists(st.integers(0, 8), min_size=1, max_size=30))
def test_interval_holds_the_mean_and_stays_in_range(successes: list[int]) -> None:
    tasks = [result(str(i), [1.0] * c + [0.0] * (8 - c), float(c > 4)) for i, c in enumerate(successes)]
    for measure in (SAMPLED, GREEDY, PASS8, pass_measure(3)):
        found = estimate(tasks, measure)
        assert 0 <= found.low <= found.mean <= found.high <= 1
        assert found.high > found.low


@pytest.mark.parametrize(("a", "b"), [(0.3, 0.7), (3.0, 7.0), (9.0, 1.0)])
def test_coverage_of_sampled_success(a: float, b: float) -> None:
    """The share of intervals that hold the true mean, tasks drawn from a beta distribution of success chances."""
    rng = np.random.default_rng(0)
    runs, tasks = 1000, 100
    hits = 0
    for _ in range(runs):
        counts = rng.binomial(8, rng.beta(a, b, tasks))
        found = clustered((counts / 8).tolist(), 8 * tasks)
        hits += found.low <= a / (a + b) <= found.high
    assert 0.935 <= hits / runs <= 0.99


def test_paired_matches_by_task_and_is_the_formula() -> None:
    before = [result("a", [1.0, 0.0]), result("b", [0.0, 0.0]), result("c", [1.0, 1.0]), result("only", [1.0])]
    after = [result("c", [1.0, 0.0]), result("b", [1.0, 1.0]), result("a", [1.0, 1.0]), result("new", [1.0])]
    differences = [0.5, 1.0, -0.5]
    padded = [*differences, 1.0, -1.0]
    centre = sum(padded) / 5
    deviation = math.sqrt(sum((d - centre) ** 2 for d in padded) / 4)
    half = 2.7764451 * deviation / math.sqrt(5)
    found = paired(before, after, SAMPLED)
    assert (found.mean, found.n) == (pytest.approx(1 / 3), 3)
    assert found.low == pytest.approx(max(-1.0, centre - half))
    assert found.high == pytest.approx(min(1.0, centre + half))


def test_paired_of_no_change_is_not_certainty() -> None:
    same = [result(str(i), [float(i % 2)] * 8) for i in range(200)]
    found = paired(same, same, SAMPLED)
    assert found.mean == 0
    assert found.low == -found.high
    assert 0.01 < found.high < 0.02


def test_pairing_is_worth_it_where_tasks_differ() -> None:
    rng = np.random.default_rng(1)
    chance = rng.beta(0.5, 0.5, 200)
    before = [result(str(i), list((rng.random(8) < p).astype(float))) for i, p in enumerate(chance)]
    after = [result(str(i), list((rng.random(8) < p).astype(float))) for i, p in enumerate(chance)]
    first, second, gain = estimate(before, SAMPLED), estimate(after, SAMPLED), paired(before, after, SAMPLED)
    assert gain.mean == pytest.approx(second.mean - first.mean)
    unpaired = math.hypot(first.high - first.low, second.high - second.low)
    assert gain.high - gain.low < 0.5 * unpaired


def test_coverage_of_the_average_gain() -> None:
    rng = np.random.default_rng(2)
    runs, tasks, lift = 300, 60, 0.1
    hits = 0
    for _ in range(runs):
        domains = []
        for a, b in ((1.0, 3.0), (1.0, 1.0), (0.5, 2.0)):
            chance = rng.beta(a, b, tasks)
            first = rng.binomial(8, chance)
            second = rng.binomial(8, chance + lift * (1 - chance))
            before = [result(str(i), [1.0] * c + [0.0] * (8 - c)) for i, c in enumerate(first)]
            after = [result(str(i), [1.0] * c + [0.0] * (8 - c)) for i, c in enumerate(second)]
            domains.append(paired(before, after, SAMPLED))
        found = average(domains)
        truth = lift * (1 - (1 / 4 + 1 / 2 + 1 / 5) / 3)
        hits += found.low <= truth <= found.high
    assert 0.93 <= hits / runs <= 1.0


def test_average_is_unweighted_and_combines_independent_widths() -> None:
    parts = [Estimate(mean=0.2, low=0.1, high=0.35, n=500), Estimate(mean=0.6, low=0.4, high=0.7, n=100)]
    found = average(parts)
    assert (found.mean, found.n) == (pytest.approx(0.4), 600)
    assert found.low == pytest.approx(0.4 - math.hypot(0.1, 0.2) / 2)
    assert found.high == pytest.approx(0.4 + math.hypot(0.15, 0.1) / 2)
    assert average(parts[:1]) == Estimate(
        mean=pytest.approx(0.2), low=pytest.approx(0.1), high=pytest.approx(0.35), n=500
    )


def test_tasks_that_lack_a_measure_are_left_out_and_counted() -> None:
    tasks = [result("a", [1.0] * 8, 1.0), result("b", [0.0] * 7), result("c", [])]
    assert estimate(tasks, PASS8).n == 1
    assert estimate(tasks, SAMPLED).n == 2
    assert estimate(tasks, GREEDY).n == 1
    with pytest.raises(ValueError, match="no task has pass8"):
        estimate(tasks[1:], PASS8)


def test_what_cannot_be_compared_is_refused() -> None:
    with pytest.raises(ValueError, match="stands twice"):
        paired([result("a", [1.0]), result("a", [1.0])], [result("a", [1.0])], SAMPLED)
    with pytest.raises(ValueError, match="share no task"):
        paired([result("a", [1.0])], [result("b", [1.0])], SAMPLED)
    with pytest.raises(ValueError, match="no domain"):
        average([])


def test_group_keeps_keys_in_order() -> None:
    tasks = [result("a", [], domain="terminal"), result("b", [], domain="office"), result("c", [], domain="terminal")]
    groups = group(tasks, lambda r: r.domain)
    assert {name: [r.task_id for r in rs] for name, rs in groups.items()} == {"office": ["b"], "terminal": ["a", "c"]}
    assert list(groups) == ["office", "terminal"]
