"""The curriculum: shares, cursors, levels; pure, so that a resumed run draws the same."""

import json
from collections import Counter
from dataclasses import replace
from itertools import pairwise

import pytest

from k3rl.config import CurriculumSection
from k3rl.rollout.curriculum import Curriculum, DomainState, from_json, to_json
from k3rl.rollout.group import EpisodeSummary
from k3rl.types import StopReason, Tier

LEVELS = {"a": 5, "b": 3, "c": 1}


def curriculum(seed=0, levels=LEVELS, **settings):
    return Curriculum(settings=CurriculumSection(**settings), levels=levels, seed=seed)


def draw(rules, state, step, groups=12):
    return rules.draw(state, step=step, groups=groups, samples=4, temperature=1.0)


def episode(domain, level, reward):
    return EpisodeSummary(
        task_id="t",
        domain=domain,
        split="train",
        family="f",
        level=level,
        tier=Tier.LOW,
        sample=0,
        reward=reward,
        stop=StopReason.ENDED if reward is not None else StopReason.INFRASTRUCTURE,
    )


@pytest.mark.parametrize("groups", [1, 7, 18])
@pytest.mark.parametrize("weights", [{}, {"a": 2.0, "b": 1.0, "c": 0.5}, {"a": 0.1, "b": 0.1, "c": 0.1}, {"c": 0.0}])
def test_shares_by_weight_are_as_even_as_whole_groups_allow(groups, weights):
    rules = curriculum(weights=weights)
    full = {name: weights.get(name, 1.0) for name in LEVELS}
    shares = {name: groups * weight / sum(full.values()) for name, weight in full.items()}
    totals = Counter()
    for step in range(300):
        counts = Counter(spec.domain for spec in draw(rules, rules.start(), step, groups)[0])
        assert counts.total() == groups
        assert all(abs(counts[name] - shares[name]) < 1 + 1e-9 for name in LEVELS)
        totals += counts
    for name in LEVELS:  # the rounding is right on average: 5 standard deviations of 300 drawn fractions
        assert totals[name] / 300 == pytest.approx(shares[name], abs=5 * 0.5 / 300**0.5)


def test_drawing_is_pure_and_depends_on_seed_and_step():
    rules = curriculum(spread="uniform")
    state = rules.start()
    kept = to_json(state)
    assert draw(rules, state, 3) == draw(rules, state, 3)
    assert to_json(state) == kept
    levels = {
        tuple(spec.level for spec in draw(other, state, step)[0])
        for other, step in ((rules, 3), (rules, 4), (curriculum(1, spread="uniform"), 3))
    }
    assert len(levels) == 3


@pytest.mark.parametrize("spread", ["curriculum", "uniform", "signal"])
def test_no_task_comes_twice_and_none_is_left_out(spread):
    rules = curriculum(spread=spread, replay=0.4)
    state = {**rules.start(), "a": DomainState(level=4)}
    seen = []
    for step in range(40):
        specs, state = draw(rules, state, step)
        seen += [(spec.domain, spec.level, spec.index) for spec in specs]
    assert len(seen) == len(set(seen)) == 480
    for name, top in LEVELS.items():
        for level in range(1, top + 1):
            indices = sorted(index for domain, at, index in seen if (domain, at) == (name, level))
            assert indices == list(range(len(indices)))


def test_a_state_that_was_not_trained_on_draws_the_same_tasks_again():
    rules = curriculum()
    first, _ = draw(rules, rules.start(), 1)
    again, advanced = draw(rules, rules.start(), 1)
    assert again == first
    following, _ = draw(rules, advanced, 2)
    assert not {(s.domain, s.level, s.index) for s in first} & {(s.domain, s.level, s.index) for s in following}


def test_levels_stay_between_one_and_the_top():
    rules = curriculum(spread="uniform", max_level=2)
    seen = {(spec.domain, spec.level) for step in range(60) for spec in draw(rules, rules.start(), step)[0]}
    assert seen == {("a", 1), ("a", 2), ("b", 1), ("b", 2), ("c", 1)}
    assert curriculum(start_level=9).start()["b"].level == 3


def test_replay_comes_from_lower_levels_in_its_share():
    rules = curriculum(levels={"a": 5}, replay=0.3)
    state = {"a": DomainState(level=4)}
    levels = Counter(spec.level for step in range(100) for spec in draw(rules, state, step, 20)[0])
    assert set(levels) == {1, 2, 3, 4}
    assert levels[4] / 2000 == pytest.approx(0.7, abs=5 * (0.21 / 2000) ** 0.5)


def test_success_above_the_band_moves_up_and_below_it_down():
    rules = curriculum(levels={"a": 3})
    state = {"a": DomainState(level=2)}
    for _ in range(3):
        state = rules.update(state, [episode("a", 2, 1.0)] * 9 + [episode("a", 2, 0.0)])
    assert state["a"].level == 3
    for level in (3, 3, 3, 2, 2, 2, 1, 1, 1, 1):
        assert state["a"].level == level
        state = rules.update(state, [episode("a", level, 0.0)])
    assert state["a"].level == 1  # never below


def test_success_in_the_band_stays_and_other_episodes_do_not_count():
    rules = curriculum(levels={"a": 3})
    state = {"a": DomainState(level=2)}
    for _ in range(20):
        state = rules.update(state, [episode("a", 2, 1.0), episode("a", 2, 0.0)])
    assert state["a"].level == 2
    assert state["a"].success == pytest.approx(0.5)
    same = rules.update(state, [episode("a", 1, 1.0), episode("b", 2, 1.0), episode("a", 2, None)])
    assert replace(same["a"], signal=state["a"].signal) == state["a"]


def test_running_success_is_the_mean_at_first_and_forgets_later():
    rules = curriculum(levels={"a": 1}, band=(0.0, 1.0))
    state, seen = rules.start(), [1.0, 0.0, 0.0, 1.0, 0.0, 1.0, 1.0]
    expected = 0.0
    for step, value in enumerate(seen, start=1):
        state = rules.update(state, [episode("a", 1, value)])
        expected += (value - expected) * max(0.2, 1 / step)
        assert state["a"].success == pytest.approx(expected)


def test_a_state_survives_json():
    rules = curriculum(spread="uniform")
    state = rules.start()
    states = [state]
    for step in range(5):
        specs, state = draw(rules, state, step)
        state = rules.update(state, [episode(s.domain, s.level, float(s.index % 2)) for s in specs])
        states.append(state)
    assert all(one != other for one, other in pairwise(states))
    for kept in states:
        read = from_json(json.loads(json.dumps(to_json(kept))))
        assert read == kept
        assert draw(rules, read, 9) == draw(rules, kept, 9)


def test_levels_are_drawn_by_the_share_of_their_groups_that_differ():
    """Level 1 always right, level 2 mixed, level 3 always wrong; level 4 and 5 of domain a not seen yet."""
    rules = curriculum(spread="signal")
    state = rules.start()
    outcomes = {1: (1.0, 1.0), 2: (1.0, 0.0), 3: (0.0, 0.0)}
    seen = [
        replace(episode("a", level, reward), task_id=f"t{level}")
        for level, rewards in outcomes.items()
        for reward in rewards
    ]
    for _ in range(30):
        state = rules.update(state, seen)
    assert state["a"].signal == pytest.approx({"1": 0.8**30, "2": 1.0, "3": 0.8**30})
    assert state == from_json(json.loads(json.dumps(to_json(state))))
    counts = Counter(
        spec.level for step in range(400) for spec in draw(rules, state, step, groups=9)[0] if spec.domain == "a"
    )
    weights = {1: 0.1, 2: 1.0, 3: 0.1, 4: 1.0, 5: 1.0}
    total = counts.total()
    for level, weight in weights.items():
        share = weight / sum(weights.values())
        assert counts[level] / total == pytest.approx(share, abs=4 * (share * (1 - share) / total) ** 0.5)


def test_what_infrastructure_lost_says_nothing_about_signal():
    rules = curriculum(spread="signal")
    lost = [replace(episode("a", 1, reward), task_id="t") for reward in (1.0, None)]
    assert rules.update(rules.start(), lost)["a"].signal == {"1": 0.8}
