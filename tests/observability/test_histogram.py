"""Histograms against the sorted values themselves."""

import json
import math
import random

import numpy as np
import pytest

from k3rl.observability.histogram import histogram, merged, quantile

WIDTH = 10 ** (1 / 20)


def values(seed: int, count: int) -> list[float]:
    rng = random.Random(seed)
    return [10 ** rng.gauss(-5, 1) for _ in range(count)]


@pytest.mark.parametrize("share", [0.01, 0.5, 0.99, 1.0])
def test_a_quantile_over_many_steps_is_that_of_all_their_values(share: float) -> None:
    steps = [values(seed, 10 + 97 * seed) for seed in range(6)]
    together = sorted(value for step in steps for value in step)
    exact = together[math.ceil(share * len(together)) - 1]
    found = quantile(merged(histogram(np.array(step)) for step in steps), share)
    assert exact <= found * (1 + 1e-12)
    assert found <= exact * WIDTH * (1 + 1e-12)


def test_it_is_not_the_largest_quantile_of_a_step() -> None:
    few, many = histogram(np.full(10, 0.5)), histogram(np.full(9990, 1e-6))
    assert quantile(few, 0.99) == pytest.approx(0.5, rel=WIDTH - 1)
    assert quantile(merged([few, many]), 0.99) == pytest.approx(1e-6, rel=WIDTH - 1)


def test_it_survives_json_and_holds_zeros() -> None:
    counts = histogram(np.array([0.0, 0.0, 1e-20, 1.0]))
    assert json.loads(json.dumps(counts)) == counts == {"-240": 3, "0": 1}
    assert quantile({}, 0.99) == 0.0
