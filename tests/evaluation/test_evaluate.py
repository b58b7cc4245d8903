"""Which tasks an evaluation plays, and what one task's episodes come to."""

from collections import Counter
from dataclasses import replace

import pytest

from k3rl.config import EvaluationSection
from k3rl.evaluation.evaluate import evaluate, evaluation_specs, level_counts, task_result
from k3rl.rollout.group import EpisodeSummary, GroupSpec
from k3rl.rollout.pool import GroupResult
from k3rl.types import StopReason, Tier


@pytest.mark.parametrize("tasks", [1, 7, 200, 201])
@pytest.mark.parametrize("shares", [{}, {1: 0.1, 2: 0.2, 3: 0.3, 4: 0.4}, {2: 1 / 3, 5: 2 / 3}, {1: 0.29, 9: 0.71}])
def test_level_counts_sum_and_stay_within_one_of_their_share(tasks, shares):
    counts = level_counts(shares, tasks, 5)
    assert sum(counts.values()) == tasks
    wanted = shares or dict.fromkeys(range(1, 6), 0.2)
    for level, count in counts.items():
        share = sum(part for asked, part in wanted.items() if min(asked, 5) == level)
        assert abs(count - share * tasks) < 1
    assert set(counts) <= {1, 2, 3, 4, 5}


def test_every_task_is_sampled_and_played_greedily_side_by_side():
    settings = EvaluationSection(tasks=5, heldout_tasks=2, samples=8, temperature=0.7, seed=3)
    specs = evaluation_specs(settings, {"b": 2, "a": 4})
    assert specs == evaluation_specs(settings, {"a": 4, "b": 2})
    assert len(specs) == 2 * 2 * 7
    for sampled, greedy in zip(specs[::2], specs[1::2], strict=True):
        assert replace(sampled, samples=1, temperature=0.0) == greedy
        assert (sampled.samples, sampled.temperature, sampled.seed) == (8, 0.7, 3)
    tasks = Counter((s.domain, s.split, s.level, s.index) for s in specs)
    assert set(tasks.values()) == {2}
    assert Counter((s.domain, s.split) for s in specs) == {
        (domain, split): n for domain in "ab" for split, n in (("test", 10), ("test_heldout", 4))
    }


def test_held_out_families_belong_to_the_test_alone():
    assert {s.split for s in evaluation_specs(EvaluationSection(split="validation", tasks=3), {"a": 1})} == {
        "validation"
    }


def summary(**fields):
    defaults = {
        "task_id": "d/test/f/2/7-0",
        "domain": "d",
        "split": "test",
        "family": "f",
        "level": 2,
        "tier": Tier.LOW,
        "sample": 0,
        "reward": 0.0,
        "stop": StopReason.ENDED,
    }
    return EpisodeSummary(**{**defaults, **fields})


FAULT = summary(reward=None, stop=StopReason.INFRASTRUCTURE, error="gone", turns=9, sampled_tokens=999)


def test_a_task_s_result_is_the_mean_over_scored_episodes():
    sampled = [
        summary(reward=1.0, turns=2, sampled_tokens=10, thinking_tokens=4, malformed=1),
        FAULT,
        summary(reward=0.0, turns=4, sampled_tokens=30, thinking_tokens=0, malformed=2),
    ]
    result = task_result(sampled, summary(reward=1.0))
    assert (result.task_id, result.family, result.level, result.tier) == ("d/test/f/2/7-0", "f", 2, "low")
    assert (result.sampled, result.greedy) == ((1.0, 0.0), 1.0)
    assert (result.tokens, result.turns, result.thinking, result.malformed) == (20, 3, 2, 0.5)


def test_a_task_without_a_scored_episode_has_no_results():
    result = task_result([FAULT], FAULT)
    assert (result.sampled, result.greedy, result.tokens, result.turns) == ((), None, 0, 0)


class Pool:
    """Plays with rewards that say who was played."""

    def run(self, specs: list[GroupSpec], on_group=None, *, keep_trajectories) -> list[GroupResult]:
        assert not keep_trajectories  # thousands of episodes would fill the object store
        return [
            GroupResult(
                spec=spec,
                episodes=tuple(
                    summary(task_id=f"{spec.domain}-{spec.index}", reward=float(spec.temperature == 0), sample=sample)
                    for sample in range(spec.samples)
                ),
                trajectories=None,
            )
            for spec in specs
        ]


def test_samples_and_greedy_episode_of_a_task_meet_in_one_result():
    specs = evaluation_specs(EvaluationSection(tasks=3, heldout_tasks=0, samples=2), {"a": 1})
    results = evaluate(Pool(), specs, fault_limit=1.0)
    assert [(r.task_id, r.sampled, r.greedy) for r in results] == [(f"a-{n}", (0.0, 0.0), 1.0) for n in range(3)]
