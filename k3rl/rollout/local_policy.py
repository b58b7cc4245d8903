"""A model in this very process as an episode's policy: no Ray, one engine. For checks and small experiments."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from k3rl.chat import XtmlRenderer
from k3rl.environment import StepResult
from k3rl.inference import AsyncEngine, AsyncSession, Engine, SampledTurn, Sampling, TurnRules
from k3rl.model import load_model
from k3rl.types import Task, TokenLog


@dataclass(frozen=True, kw_only=True, slots=True)
class LocalPolicy:
    """Sessions of `engine` at `temperature`."""

    engine: AsyncEngine
    temperature: float = 1.0

    @classmethod
    def load(cls, folder: Path, renderer: XtmlRenderer, *, slots: int, max_context: int) -> LocalPolicy:
        """The model of a folder, as version 0. Raises CheckpointError."""
        rules = TurnRules(stop=renderer.stop_token, close_thinking=tuple(renderer.close_thinking))
        engine = Engine(load_model(folder), slots=slots, max_context=max_context, rules=rules, version=0)
        return cls(engine=AsyncEngine(engine))

    async def open(self, task: Task, prompt: Sequence[int], *, seed: int) -> LocalSession:
        sampling = Sampling(temperature=self.temperature)
        return LocalSession(await self.engine.open(prompt, seed=seed, sampling=sampling, group_key=task.id))


class LocalSession:
    """One session, as `episode.Session`."""

    def __init__(self, session: AsyncSession) -> None:
        self._session = session

    async def turn(
        self, given: Sequence[int], *, after: StepResult | None, max_tokens: int, thinking_budget: int | None
    ) -> SampledTurn:
        return await self._session.turn(given, max_tokens=max_tokens, thinking_budget=thinking_budget)

    async def close(self) -> TokenLog:
        return await self._session.close()

    async def abort(self) -> None:
        self._session.abort()
