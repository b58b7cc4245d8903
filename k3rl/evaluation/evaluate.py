"""Evaluation: the configured mix of unseen tasks, each sampled several times and once greedily.

The tasks, their order and every sample's seed depend on the configuration alone, so two checkpoints evaluated with it
are paired task by task.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from k3rl.config import EvaluationSection
from k3rl.evaluation.statistics import TaskResult
from k3rl.rollout.faults import tell_faults
from k3rl.rollout.group import EpisodeSummary, GroupSpec
from k3rl.rollout.pool import GroupResult, RolloutPool
from k3rl.types import Split


def evaluation_specs(settings: EvaluationSection, levels: Mapping[str, int]) -> list[GroupSpec]:
    """Sampled and greedy groups of every task, neighbours of one task together. `levels`: how many, by domain."""
    specs = []
    parts: list[tuple[Split, int]] = [(settings.split, settings.tasks)]  # type: ignore[list-item]
    if settings.split == "test" and settings.heldout_tasks:
        parts.append(("test_heldout", settings.heldout_tasks))
    for domain in sorted(levels):
        for split, tasks in parts:
            for level, count in level_counts(settings.levels, tasks, levels[domain]).items():
                for index in range(count):
                    for samples, temperature in ((settings.samples, settings.temperature), (1, 0.0)):
                        specs.append(
                            GroupSpec(
                                domain=domain,
                                split=split,
                                level=level,
                                index=index,
                                samples=samples,
                                seed=settings.seed,
                                temperature=temperature,
                            )
                        )
    return specs


def level_counts(shares: Mapping[int, float], tasks: int, top: int) -> dict[int, int]:
    """Whole numbers of tasks by level that sum to `tasks`. No shares: all levels alike; those above `top` go to it."""
    folded: dict[int, float] = {}
    for level, share in (shares or dict.fromkeys(range(1, top + 1), 1 / top)).items():
        folded[min(level, top)] = folded.get(min(level, top), 0.0) + share
    counts = {level: int(share * tasks) for level, share in folded.items()}
    by_rest = sorted(folded, key=lambda level: (counts[level] - folded[level] * tasks, level))
    for level in by_rest[: tasks - sum(counts.values())]:
        counts[level] += 1
    return dict(sorted(counts.items()))


def evaluate(
    pool: RolloutPool,
    specs: Sequence[GroupSpec],
    on_group: Callable[[GroupResult], None] | None = None,
    *,
    fault_limit: float,
) -> list[TaskResult]:
    """Play `specs` (from `evaluation_specs`) with the weights the pool now serves; one result per task.

    `fault_limit` as in `tell_faults`.
    """
    groups = pool.run(specs, on_group, keep_trajectories=False)
    tell_faults((episode for group in groups for episode in group.episodes), "evaluation", fault_limit)
    sampled = [group for group in groups if group.spec.temperature > 0]
    greedy = [group for group in groups if group.spec.temperature == 0]
    return [task_result(s.episodes, g.episodes[0]) for s, g in zip(sampled, greedy, strict=True)]


def task_result(sampled: Sequence[EpisodeSummary], greedy: EpisodeSummary) -> TaskResult:
    """Condense one task's episodes; those that say nothing about the policy (reward None) are left out."""
    used = [episode for episode in sampled if episode.reward is not None]
    episodes = max(len(used), 1)
    turns = sum(e.turns for e in used)
    return TaskResult(
        task_id=greedy.task_id,
        domain=greedy.domain,
        split=greedy.split,
        family=greedy.family,
        level=greedy.level,
        tier=str(greedy.tier),
        sampled=tuple(e.reward for e in used if e.reward is not None),
        greedy=greedy.reward,
        tokens=sum(e.sampled_tokens for e in used) / episodes,
        turns=turns / episodes,
        thinking=sum(e.thinking_tokens for e in used) / episodes,
        malformed=sum(e.malformed for e in used) / max(turns, 1),
    )
