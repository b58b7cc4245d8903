"""The checks of a domain, one function each, and their order."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import aclosing, suppress
from functools import partial

from k3rl.environment import Domain, Solution, StepResult
from k3rl.environments.check.fuzz import random_calls, silence
from k3rl.environments.check.host import host_words
from k3rl.environments.check.levels import level_rows
from k3rl.environments.check.play import AT_ONCE, Episode, in_parallel, play, sample
from k3rl.environments.check.processes import cpu_seconds, descendants
from k3rl.environments.check.rows import Row, failures
from k3rl.environments.sandbox import SandboxPool
from k3rl.environments.sandbox.probes import attempt_all, refused, stopped
from k3rl.errors import InfrastructureError
from k3rl.types import Message, Task

SEED = 7_000_000  # far from what training uses
CPU_LIMIT = 0.1  # seconds per episode
Progress = Callable[[str, int, int], None]
"""Told the check's name, how much of it is done, and of how much; 0 of 1 as a check begins that is not counted."""
Policy = Callable[[Task], Awaitable[float]]
"""Plays a task once and gives its reward: the weak policy of the level curve."""
Tokens = Callable[[Task, Sequence[tuple[Message, StepResult]]], int]
"""Length of an episode in tokens."""


async def run_check(
    domain: Domain,
    seeds: int = 200,
    policy: Policy | None = None,
    *,
    tokens: Tokens | None = None,
    progress: Progress = lambda name, done, total: None,
) -> list[Row]:
    """All rows; closes the domain. `seeds` oracle episodes; the other checks take their share of it."""
    rows: list[Row] = []
    before = set(descendants())
    few = max(8, seeds // 4)
    try:
        progress("start", 0, 1)
        rows.append(await _start(domain))
        speed, episodes = await _oracle(domain, seeds, progress)
        rows += [_solved(episodes), speed]
        rows += await _ignorance(domain, few, progress)
        rows += await _exploits(domain, few, progress)
        rows.append(await _determinism(domain, few, progress))
        rows += [_host(episodes), _leaks(domain, episodes)]
        rows += await level_rows(domain, episodes, policy, tokens, few, progress)
        progress("isolation", 0, 1)
        rows.append(await _probes(domain))
        progress("after a kill", 0, 1)
        rows.append(await _killed(domain, before))
        progress("after a cancelled step", 0, 1)
        rows.append(await _cancelled(domain))
    finally:
        await domain.close()
    progress("after close", 0, 1)
    rows.append(await _nothing_left(before))
    return rows


def _ticker(progress: Progress, name: str, total: int) -> Callable[[], None]:
    done = 0

    def tick() -> None:
        nonlocal done
        done += 1
        progress(name, done, total)

    return tick


async def _start(domain: Domain) -> Row:
    """The first episode of all; then one of every family, a few at once, so that what follows finds all started."""
    begun = time.monotonic()
    tasks = [domain.task("train", seed=SEED, level=1, index=0, family=family) for family in domain.families]
    await play(domain, tasks[0], domain.solve(tasks[0]))
    first = time.monotonic() - begun
    await in_parallel(tasks, lambda t: play(domain, t, domain.solve(t)), lambda: None)
    memory = sum(resident for _, resident in descendants().values()) / 2**20
    return Row(name="start", value=f"first episode {first:.2f} s; {AT_ONCE} at once {memory:.0f} MiB resident", ok=True)


async def _oracle(domain: Domain, seeds: int, progress: Progress) -> tuple[Row, list[Episode]]:
    tasks = sample(domain, seeds, seed=SEED)
    variants = {task.id: number for number, task in enumerate(tasks)}
    cpu, begun = cpu_seconds(), time.monotonic()
    episodes = await in_parallel(
        tasks, lambda t: play(domain, t, domain.solve(t, variants[t.id])), _ticker(progress, "oracle", seeds)
    )
    each, wall = (cpu_seconds() - cpu) / seeds, time.monotonic() - begun
    steps = sum(len(episode.steps) for episode in episodes)
    value = (
        f"{each * 1000:.1f} ms of CPU per episode, {1 / each:.0f} episodes/s per core, "
        f"{wall / steps * 1000:.1f} ms a step"
    )
    return Row(name="speed", value=value, ok=each <= CPU_LIMIT), episodes


def _solved(episodes: list[Episode]) -> Row:
    unsolved = [f"{e.task.id} {dict(e.score.parts)}" for e in episodes if e.score.reward != 1.0]
    return Row(name="oracle", value=failures(unsolved, len(episodes), "solved"), ok=not unsolved)


async def _ignorance(domain: Domain, count: int, progress: Progress) -> list[Row]:
    tasks = sample(domain, count, seed=SEED + 1)
    scripts: dict[str, Callable[[Task], Solution]] = {"no-op": silence, "random calls": random_calls}
    rows = []
    for name, script in scripts.items():
        played = await in_parallel(tasks, partial(_play_script, domain, script), _ticker(progress, name, count))
        paid = [f"{e.task.id} {e.score.reward}" for e in played if e.score.reward != 0.0]
        rows.append(Row(name=name, value=failures(paid, count, "without reward"), ok=not paid))
    return rows


async def _play_script(domain: Domain, script: Callable[[Task], Solution], task: Task) -> Episode:
    return await play(domain, task, script(task))


async def _exploits(domain: Domain, count: int, progress: Progress) -> list[Row]:
    pairs = [(task, name) for task in sample(domain, count, seed=SEED + 2) for name in domain.exploits(task)]
    played = await in_parallel(
        pairs, lambda p: play(domain, p[0], domain.exploits(p[0])[p[1]]()), _ticker(progress, "exploits", len(pairs))
    )
    rows = []
    for cheat in sorted({name for _, name in pairs}):
        tried = [episode for (_, name), episode in zip(pairs, played, strict=True) if name == cheat]
        paid = [f"{e.task.id} {e.score.reward}" for e in tried if e.score.reward != 0.0]
        rows.append(Row(name=f"exploit: {cheat}", value=failures(paid, len(tried), "without reward"), ok=not paid))
    return rows or [Row(name="exploits", value="the domain lists none", ok=False)]


async def _determinism(domain: Domain, count: int, progress: Progress) -> Row:
    pairs = list(zip(sample(domain, count, seed=SEED + 3), sample(domain, count, seed=SEED + 3), strict=True))

    forget: Callable[[], None] = getattr(domain, "forget", lambda: None)

    async def differs(pair: tuple[Task, Task]) -> str:
        if pair[0] != pair[1]:
            return f"{pair[0].id}: another task"
        one = await play(domain, pair[0], domain.solve(pair[0]))
        forget()  # what a domain remembers of it must not be all that makes the second the same
        two = await play(domain, pair[1], domain.solve(pair[1]))
        return "" if one == two else f"{pair[0].id}: other observations or score"

    wrong = [text for text in await in_parallel(pairs, differs, _ticker(progress, "determinism", count)) if text]
    return Row(name="determinism", value=failures(wrong, count, "the same twice"), ok=not wrong)


def _texts(episode: Episode) -> list[str]:
    return [*(message.content for message in episode.task.messages), *episode.observations]


def _host(episodes: list[Episode]) -> Row:
    words = host_words()
    seen = [f"{e.task.id} shows {word!r}" for e in episodes for word in words if any(word in t for t in _texts(e))]
    return Row(name="host unseen", value=failures(seen, len(episodes), "show nothing of the host"), ok=not seen)


def _leaks(domain: Domain, episodes: list[Episode]) -> Row:
    """No text of `secrets(task)` is ever shown; none of `unsaid(task)`, if there is one, stands in the prompt."""
    secrets = getattr(domain, "secrets", None)
    if secrets is None:
        return Row(name="leaks", value="the domain has no secrets(task) -> list of texts never to be shown", ok=False)
    unsaid: Callable[[Task], list[str]] = getattr(domain, "unsaid", lambda task: [])
    told = [f"{e.task.id} shows {s!r}" for e in episodes for s in secrets(e.task) if any(s in t for t in _texts(e))]
    for task in (episode.task for episode in episodes):
        prompt = "\n".join(message.content for message in task.messages)
        told += [f"{task.id} says {s!r}" for s in unsaid(task) if re.search(rf"(?<!\w){re.escape(s)}(?!\w)", prompt)]
    count = sum(len(secrets(episode.task)) + len(unsaid(episode.task)) for episode in episodes)
    if not count:
        where = f"secrets(task) and unsaid(task) name no text in {len(episodes)} tasks"
        value = f"nothing examined: {where}; raise seeds, or name some"
        return Row(name="leaks", value=value, ok=False)
    return Row(name="leaks", value=failures(told, count, "secrets kept"), ok=not told)


async def _probes(domain: Domain) -> Row:
    spec = getattr(domain, "sandbox_spec", None)
    if spec is None:
        return Row(name="isolation", value="the domain has no sandbox_spec", ok=False)
    async with SandboxPool(spec, 1) as pool, await pool.acquire() as box:
        wrong = await attempt_all(box, spec)
    count = len(refused(spec)) + len(stopped(spec)) + 1
    return Row(name="isolation", value=failures(wrong, count, "ways out closed"), ok=not wrong)


async def _killed(domain: Domain, before: set[int]) -> Row:
    """An episode whose processes die is told as infrastructure, never scored as the agent's failure; the next works."""
    task = domain.task("train", seed=SEED + 4, level=1, index=0)
    try:
        reward = (await play(domain, task, _killing(domain.solve(task), before))).score.reward
        outcome, right = f"scored {reward:g}", reward == 1.0  # it needed none of them
    except InfrastructureError as error:
        outcome, right = type(error).__name__, True
    except Exception as error:  # anybody's code: what it raised is the finding
        outcome, right = f"{type(error).__name__} instead of InfrastructureError", False
    for _ in range(100):  # idle containers were killed as well: each is found out once
        with suppress(InfrastructureError):
            solved = (await play(domain, task, domain.solve(task))).score.reward == 1.0
            return Row(name="after a kill", value=f"{outcome}, then solved: {solved}", ok=right and solved)
    return Row(name="after a kill", value=f"{outcome}, then no episode could be had", ok=False)


async def _killing(solution: Solution, before: set[int]) -> Solution:
    """The same script; whatever ran is dead when a message of it arrives."""
    result = None
    async with aclosing(solution):
        with suppress(StopAsyncIteration):
            while True:
                message = await solution.asend(result)  # type: ignore[arg-type]  # None starts it
                for pid in set(descendants()) - before:
                    with suppress(ProcessLookupError):  # went with its parent
                        os.kill(pid, signal.SIGKILL)
                result = yield message


async def _cancelled(domain: Domain) -> Row:
    """An episode cancelled in the middle of a step leaves nothing that hinders the next."""
    task = domain.task("train", seed=SEED + 5, level=1, index=0)
    environment = await domain.open(task)
    step = asyncio.create_task(_first_step(environment.step, domain, task))
    await asyncio.sleep(0)
    step.cancel()
    with suppress(asyncio.CancelledError):  # the one that was just asked for
        await step
    await environment.close()
    solved = (await play(domain, task, domain.solve(task))).score.reward == 1.0
    return Row(name="after a cancelled step", value=f"solved: {solved}", ok=solved)


async def _first_step(step: Callable[[Message], Awaitable[StepResult]], domain: Domain, task: Task) -> None:
    await step(await anext(domain.solve(task)))


async def _nothing_left(before: set[int]) -> Row:
    deadline = time.monotonic() + 10
    while (left := set(descendants()) - before) and time.monotonic() < deadline:
        await asyncio.sleep(0.05)
    return Row(name="after close", value=f"{len(left)} processes left", ok=not left)
