"""Policies and domains for tests of the episode loop: what they do is written out beforehand, what they see is kept."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
from echo_domain import EchoDomain, EchoEnvironment

from k3rl.environment import StepResult
from k3rl.types import Json, Limits, Message, Score, Task, TokenLog

LIMITS = Limits(turns=3, seconds=10, context=640, turn_tokens=96)


@dataclass
class WrittenTurn:
    """Tokens that a policy will have sampled, why it stopped, and an error to raise instead."""

    tokens: Sequence[int] = ()
    stop: str = "stop"
    error: BaseException | None = None


class WrittenPolicy:
    """Plays `turns` in every session; sessions are kept with all that they were asked for."""

    def __init__(self, *turns: WrittenTurn, open_error: BaseException | None = None) -> None:
        self.turns, self.open_error = turns, open_error
        self.sessions: list[WrittenSession] = []

    async def open(self, task: Task, prompt: Sequence[int], *, seed: int) -> WrittenSession:
        if self.open_error:
            raise self.open_error
        self.sessions.append(WrittenSession(self.turns, prompt, seed))
        return self.sessions[-1]


class WrittenSession:
    """One append-only token list."""

    def __init__(self, turns: Sequence[WrittenTurn], prompt: Sequence[int], seed: int) -> None:
        self._turns = iter(turns)
        self.seed = seed
        self.tokens, self.mask = list(prompt), [False] * len(prompt)
        self.asked: list[dict] = []
        self.ended: list[str] = []

    async def turn(
        self, given: Sequence[int], *, after: StepResult | None, max_tokens: int, thinking_budget: int | None
    ) -> WrittenTurn:
        self.asked.append({"given": list(given), "after": after, "max": max_tokens, "thinking": thinking_budget})
        turn = next(self._turns)
        if turn.error:
            raise turn.error
        self.tokens += [*given, *turn.tokens]
        self.mask += [False] * len(given) + [True] * len(turn.tokens)
        return turn

    async def close(self) -> TokenLog:
        self.ended.append("close")
        mask = np.array(self.mask)
        zeros = np.zeros(len(mask), np.float32)
        return TokenLog(
            tokens=np.array(self.tokens, np.int32),
            mask=mask,
            logprobs=zeros,
            entropies=zeros,
            versions=np.where(mask, 0, -1).astype(np.int32),
        )

    async def abort(self) -> None:
        self.ended.append("abort")


@dataclass
class WatchedDomain(EchoDomain):
    """Echo, with limits of the test's choice, faults where it wants them, and a record of what happened.

    `faults` maps open, step, artifacts, score or close to what makes the error of each call (None: all is well).
    `hang` names one of them that never returns.
    """

    limits: Limits = LIMITS
    faults: Mapping[str, Callable[[], BaseException | None]] = field(default_factory=dict)
    hang: str = ""
    results: Sequence[StepResult] = ()  # of steps, instead of the environment's own
    calls: list[str] = field(default_factory=list)
    steps: list[Message] = field(default_factory=list)

    def __post_init__(self) -> None:
        super().__init__()

    async def happen(self, what: str) -> None:
        self.calls.append(what)
        if what == self.hang:
            await asyncio.Event().wait()
        error = self.faults.get(what, lambda: None)()
        if error is not None:
            raise error

    def first_task(self, level: int = 1) -> Task:
        return replace(self.task("train", seed=0, level=level, index=0), limits=self.limits)

    async def open(self, task: Task) -> WatchedEnvironment:
        await self.happen("open")
        return WatchedEnvironment(task, self)

    async def score(self, task: Task, artifacts: Mapping[str, Json]) -> Score:
        await self.happen("score")
        return await super().score(task, artifacts)


class WatchedEnvironment(EchoEnvironment):
    """Tells its domain."""

    def __init__(self, task: Task, domain: WatchedDomain) -> None:
        super().__init__(task)
        self._domain = domain
        self._results = iter(domain.results)

    async def step(self, message: Message) -> StepResult:
        await self._domain.happen("step")
        self._domain.steps.append(message)
        result = await super().step(message)
        return next(self._results, result)

    async def artifacts(self) -> Mapping[str, Json]:
        await self._domain.happen("artifacts")
        return await super().artifacts()

    async def close(self) -> None:
        await self._domain.happen("close")
