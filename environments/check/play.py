"""Playing scripts without tokens: an episode, its observations, its score."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TypeVar

from k3rl.environment import Domain, Solution, StepResult
from k3rl.errors import EnvironmentFault
from k3rl.time_limit import TimeLimit
from k3rl.types import Message, Score, Split, Task

AT_ONCE = 4
CALL_SECONDS = 60.0
Item = TypeVar("Item")
Out = TypeVar("Out")


@dataclass(frozen=True, kw_only=True, slots=True)
class Episode:
    """One played script: each assistant message with what followed it, and the score."""

    task: Task
    steps: tuple[tuple[Message, StepResult], ...]
    score: Score

    @property
    def observations(self) -> list[str]:
        return [message.content for _, result in self.steps for message in result.messages]


async def play(domain: Domain, task: Task, solution: Solution) -> Episode:
    """As the real loop does it: step until the end or the task's limit of turns, then score, then close."""
    environment = await _within(domain.open(task), task, "open")
    steps: list[tuple[Message, StepResult]] = []
    try:
        message = await anext(solution)
        for _ in range(task.limits.turns):
            result = await _within(environment.step(message), task, "step")
            steps.append((message, result))
            if result.terminated or result.truncated:
                break
            try:
                message = await solution.asend(result)
            except StopAsyncIteration:
                break
        artifacts = await _within(environment.artifacts(), task, "artifacts")
        score = await _within(domain.score(task, artifacts), task, "score")
    finally:
        await solution.aclose()
        await _within(environment.close(), task, "close")
    return Episode(task=task, steps=tuple(steps), score=score)


async def _within(call: Awaitable[Out], task: Task, what: str) -> Out:
    try:
        async with TimeLimit(CALL_SECONDS) as limit:
            return await call
    except TimeoutError as error:
        if not limit.expired:  # the domain's own
            raise
        raise EnvironmentFault(
            f"{task.id}: {what} did not return within {CALL_SECONDS:g} s: the domain hangs"
        ) from error


async def in_parallel(
    items: Iterable[Item], work: Callable[[Item], Awaitable[Out]], tick: Callable[[], None]
) -> list[Out]:
    """`work` on every item, a few at once, in order; `tick` after each. Raises the first failure as it is."""
    gate = asyncio.Semaphore(AT_ONCE)

    async def one(item: Item) -> Out:
        async with gate:
            out = await work(item)
        tick()
        return out

    try:
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(one(item)) for item in items]
    except ExceptionGroup as failed:  # callers tell errors by their class
        raise failed.exceptions[0] from failed
    return [task.result() for task in tasks]


def sample(domain: Domain, count: int, *, seed: int, splits: Sequence[Split] = ()) -> list[Task]:
    """`count` tasks, evenly over splits, families and levels (each combination once before any comes twice)."""
    wanted: Sequence[Split] = splits or ("train", "validation", "test", "test_heldout")
    places = [
        (split, family, level)
        for level in range(1, domain.levels + 1)
        for split in wanted
        for family in (domain.heldout if split == "test_heldout" else domain.families)
    ]
    chosen = (places[(number * _stride(len(places))) % len(places)] for number in range(count))
    return [
        domain.task(split, seed=seed, level=level, index=number // len(places), family=family)
        for number, (split, family, level) in enumerate(chosen)
    ]


def _stride(count: int) -> int:
    """A step that visits all of `count` places and spreads early visits over them."""
    step = max(1, int(count * 0.618))
    while math.gcd(step, count) != 1:
        step += 1
    return step
