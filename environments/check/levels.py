"""The table of levels: how long the oracle takes, and what a weak policy reaches."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence

from k3rl.environment import Domain, StepResult
from k3rl.environments.check.play import Episode, in_parallel, sample
from k3rl.environments.check.rows import Row
from k3rl.types import Message, Task

SLACK = 0.25  # turns by which a level may be shorter than the one below
NOISE = 0.15  # success by which a level may be easier than the one below


async def level_rows(
    domain: Domain,
    episodes: Sequence[Episode],
    policy: Callable[[Task], Awaitable[float]] | None,
    tokens: Callable[[Task, Sequence[tuple[Message, StepResult]]], int] | None,
    count: int,
    progress: Callable[[str, int, int], None],
) -> list[Row]:
    """A row for each level. From one to the next the oracle's turns must rise and the policy's success fall as far as
    noise allows; from the lowest to the highest they must without any allowance."""
    success = await _success(domain, policy, count, progress) if policy else {}
    rows: list[Row] = []
    last_turns, last_success = 0.0, 1.0
    lowest: tuple[float, float] | None = None
    for level in range(1, domain.levels + 1):
        played = [episode for episode in episodes if episode.task.level == level]
        if not played:
            continue
        turns = sum(len(episode.steps) for episode in played) / len(played)
        value, ok = f"{turns:.2f} turns", turns >= last_turns - SLACK
        if tokens is not None:
            value += f", {sum(tokens(e.task, e.steps) for e in played) / len(played):.0f} tokens"
        if level in success:
            value += f", weak policy {100 * success[level]:.0f}%"
            ok = ok and success[level] <= last_success + NOISE
        if lowest is None:
            lowest = turns, success.get(level, 1.0)
        elif level == domain.levels and not (turns > lowest[0] and success.get(level, 0.0) < lowest[1]):
            value, ok = f"{value}: no harder than the lowest level", False
        rows.append(Row(name=f"level {level}", value=value, ok=ok))
        last_turns, last_success = turns, success.get(level, last_success)
    return rows


async def _success(
    domain: Domain,
    policy: Callable[[Task], Awaitable[float]],
    count: int,
    progress: Callable[[str, int, int], None],
) -> dict[int, float]:
    tasks = sample(domain, count * domain.levels, seed=7_000_010, splits=("test",))
    done = 0

    async def one(task: Task) -> tuple[int, float]:
        nonlocal done
        reward = await policy(task)
        done += 1
        progress("weak policy", done, len(tasks))
        return task.level, float(reward >= 1.0)

    results = await in_parallel(tasks, one, lambda: None)
    levels = sorted({level for level, _ in results})
    return {k: sum(r for level, r in results if level == k) / sum(level == k for level, _ in results) for k in levels}
