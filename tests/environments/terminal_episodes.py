"""Plays scripted policies in a terminal domain, without tokens."""

from __future__ import annotations

from k3rl.environment import Solution
from k3rl.environments.terminal import Terminal
from k3rl.environments.terminal.scripts import play
from k3rl.types import Score, Task


async def episode(domain: Terminal, task: Task, solution: Solution) -> tuple[Score, list[str]]:
    """The score and all observations."""
    environment = await domain.open(task)
    observations: list[str] = []
    try:
        message = await anext(solution)
        while not (result := await environment.step(message)).terminated:
            observations += [observation.content for observation in result.messages]
            message = await solution.asend(result)
        artifacts = await environment.artifacts()
    finally:
        await solution.aclose()
        await environment.close()
    return await domain.score(task, artifacts), observations


async def run(domain: Terminal, task: Task, *commands: str) -> tuple[Score, list[str]]:
    """The same with the commands of the moment."""
    return await episode(domain, task, play(commands))


async def solved_and(domain: Terminal, task: Task, *commands: str) -> Score:
    """The reference solution and then more."""
    score, _ = await run(domain, task, *task.payload["solutions"][0], *commands)
    return score
