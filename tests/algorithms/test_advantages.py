"""Advantages against float64 loops written from the formulas, and against properties that must hold."""

import json
import math
import statistics

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from k3rl.algorithms.advantages import AdvantageConfig, DomainScale, Group, group_advantages, joint_advantages
from k3rl.errors import ConfigError, UserError

reward = st.one_of(st.just(math.nan), st.floats(0, 1), st.sampled_from([0.0, 1.0]))


def loop(rewards: list[float], divide: bool, epsilon: float) -> list[float]:
    """One group, by the statistics module."""
    present = [r for r in rewards if not math.isnan(r)]
    if len(set(present)) < 2:
        return [0.0] * len(rewards)
    mean = statistics.fmean(present)
    scale = statistics.pstdev(present) + epsilon if divide else 1.0
    return [0.0 if math.isnan(r) else (r - mean) / scale for r in rewards]


@given(st.lists(st.lists(reward, min_size=5, max_size=5), min_size=1, max_size=6), st.booleans())
def test_groups_equal_the_loop(rows: list[list[float]], divide: bool) -> None:
    got = group_advantages(np.array(rows), divide_by_std=divide, epsilon=1e-3)
    want = np.array([loop(row, divide, 1e-3) for row in rows])
    np.testing.assert_allclose(got, want, rtol=1e-9, atol=1e-12)


def test_figures_worked_by_hand() -> None:
    got = group_advantages(np.array([[1.0, 0.0, 0.0, 0.0]]), divide_by_std=False)
    np.testing.assert_array_equal(got, [[0.75, -0.25, -0.25, -0.25]])
    got = group_advantages(np.array([[1.0, 0.0, 0.0, 0.0]]), divide_by_std=True, epsilon=1e-12)
    np.testing.assert_allclose(got, [[3**0.5, -(3**-0.5), -(3**-0.5), -(3**-0.5)]], rtol=1e-9)


@pytest.mark.parametrize("value", [0.0, 0.1, 1.0])
def test_a_group_without_spread_is_exactly_zero(value: float) -> None:
    rewards = np.full((1, 7), value)
    rewards[0, 3] = math.nan
    assert not group_advantages(rewards, divide_by_std=True).any()
    assert not group_advantages(rewards, divide_by_std=False).any()


def test_a_missing_reward_moves_nobody() -> None:
    without = group_advantages(np.array([[1.0, 0.0, 1.0]]), divide_by_std=True)
    beside = group_advantages(np.array([[1.0, math.nan, 0.0, 1.0]]), divide_by_std=True)
    np.testing.assert_array_equal(beside[0, [0, 2, 3]], without[0])
    assert beside[0, 1] == 0.0
    assert not group_advantages(np.full((1, 3), math.nan), divide_by_std=True).any()


def test_domains_of_different_reward_size_get_equal_signal() -> None:
    rng = np.random.default_rng(0)
    pairs = [("small", 0.4), ("large", 1.0)]
    groups = [Group(domain=d, rewards=tuple(size * rng.integers(0, 2, 8))) for d, size in pairs for _ in range(40)]
    config = AdvantageConfig(floor=1e-3)
    scale = DomainScale()
    for _ in range(3):
        advantages, scale = joint_advantages(groups, scale, config)
    for domain, _ in pairs:
        flat = np.concatenate([a for g, a in zip(groups, advantages, strict=True) if g.domain == domain])
        assert np.sqrt(np.mean(flat**2)) == pytest.approx(1.0, rel=1e-9)


def test_running_rms_follows_the_recurrence() -> None:
    steps = [((1.0, 0.0), (0.5, 0.0)), ((1.0, 0.5), (0.0, 0.0)), ((0.2, 0.0), (1.0, 0.0))]
    scale, total, weight = DomainScale(), 0.0, 0.0
    for step in steps:
        groups = [Group(domain="d", rewards=rewards) for rewards in step]
        advantages, scale = joint_advantages(groups, scale, AdvantageConfig(decay=0.7, floor=0.01))
        flat = [r - sum(rewards) / 2 for rewards in step for r in rewards]
        total = 0.7 * total + 0.3 * sum(a * a for a in flat) / len(flat)
        weight = 0.7 * weight + 0.3
        assert scale.rms("d") == pytest.approx(math.sqrt(total / weight), rel=1e-12)
        np.testing.assert_allclose(np.concatenate(advantages), np.array(flat) / math.sqrt(total / weight), rtol=1e-12)


def test_the_floor_bounds_a_domain_that_is_nearly_dead() -> None:
    groups = [Group(domain="d", rewards=(1.0, *[0.0] * 7))] + [Group(domain="d", rewards=(0.0,) * 8)] * 400
    advantages, scale = joint_advantages(groups, DomainScale(), AdvantageConfig(floor=0.1))
    assert scale.rms("d") < 0.02
    assert advantages[0][0] == pytest.approx(0.875 / 0.1)


def test_arrival_order_changes_nothing() -> None:
    rng = np.random.default_rng(1)
    groups = [Group(domain="ab"[i % 2], rewards=tuple(rng.random(4))) for i in range(10)]
    forward, scale = joint_advantages(groups, DomainScale(), AdvantageConfig())
    backward, other = joint_advantages(groups[::-1], DomainScale(), AdvantageConfig())
    assert scale == other
    for one, two in zip(forward, backward[::-1], strict=True):
        np.testing.assert_array_equal(one, two)


def test_a_step_of_missing_rewards_leaves_the_scale() -> None:
    _, scale = joint_advantages([Group(domain="d", rewards=(1.0, 0.0))], DomainScale(), AdvantageConfig())
    advantages, after = joint_advantages([Group(domain="d", rewards=(None, None))], scale, AdvantageConfig())
    assert after == scale
    assert not advantages[0].any()


def test_the_scale_survives_json_exactly() -> None:
    _, scale = joint_advantages([Group(domain="d", rewards=(0.3, 0.1))], DomainScale(), AdvantageConfig())
    assert DomainScale.from_json(json.loads(json.dumps(scale.to_json()))) == scale


def test_nonsense_is_refused_in_one_line() -> None:
    with pytest.raises(ConfigError, match="choose one"):
        AdvantageConfig(divide_by_std=True, domain_scaling=True)
    with pytest.raises(UserError, match="'office' is NaN"):
        joint_advantages([Group(domain="office", rewards=(math.nan, 1.0))], DomainScale(), AdvantageConfig())
    with pytest.raises(UserError, match="infinite reward in group 1"):
        group_advantages(np.array([[0.0], [math.inf]]), divide_by_std=False)


def test_skipped_truncated_failures_count_in_the_mean_and_carry_no_signal() -> None:
    group = Group(domain="a", rewards=(1.0, 0.0, 0.0, 1.0), truncated=(False, True, False, True))
    rules = AdvantageConfig(domain_scaling=False, skip_truncated=True)
    ((first,), _), ((second,), _) = (
        joint_advantages([group], DomainScale(), rules),
        joint_advantages([group], DomainScale(), AdvantageConfig(domain_scaling=False)),
    )
    assert first.tolist() == [0.5, 0.0, -0.5, 0.5]
    assert second.tolist() == [0.5, -0.5, -0.5, 0.5]


def test_skipping_truncated_failures_leaves_the_domain_scale_as_it_is() -> None:
    group = Group(domain="a", rewards=(1.0, 0.0, 0.0, 1.0), truncated=(False, True, False, True))
    kept = joint_advantages([group], DomainScale(), AdvantageConfig())
    skipped = joint_advantages([group], DomainScale(), AdvantageConfig(skip_truncated=True))
    assert kept[1] == skipped[1]
    assert skipped[0][0][[0, 2, 3]].tolist() == kept[0][0][[0, 2, 3]].tolist()
