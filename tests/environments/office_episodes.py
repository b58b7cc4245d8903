"""Plays scripted policies in an office domain, without tokens; and one plan's judging without sandboxes."""

from __future__ import annotations

from k3rl.environment import Solution
from k3rl.environments.office import OfficeDomain
from k3rl.environments.office.plan import Plan
from k3rl.environments.office.scoring import queries, score, sound
from k3rl.environments.office.sheet_jobs.inspection import inspect
from k3rl.environments.office.sheet_jobs.recalculate import recalculate
from k3rl.types import Score, Task


async def play(domain: OfficeDomain, task: Task, solution: Solution) -> tuple[Score, list[str]]:
    """The score and all observations of one episode; the turn limit cuts it as the real loop does."""
    environment = await domain.open(task)
    observations: list[str] = []
    try:
        message = await anext(solution)
        for _ in range(task.limits.turns):
            result = await environment.step(message)
            observations += [observation.content for observation in result.messages]
            if result.terminated:
                break
            try:
                message = await solution.asend(result)
            except StopAsyncIteration:
                break
        artifacts = await environment.artifacts()
    finally:
        await solution.aclose()
        await environment.close()
    return await domain.score(task, artifacts), observations


def judge(plan: Plan, path: str, answer: str = "", seed: str = "seed") -> Score:
    """What the domain's `score` does, in this process."""
    report = inspect({"path": path})
    results = []
    if plan.formulas and sound(plan, report):
        results = recalculate({"sheets": report["sheets"], "queries": queries(plan, seed)})
    return score(plan, report, results, answer, seed)
