"""The Ray actor that samples: one engine in a thread of its own, many sessions at once.

It serves nothing before a published version has been applied and verified.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch

from k3rl.chat import XtmlRenderer, load_tokenizer
from k3rl.config import RolloutSection
from k3rl.errors import InfrastructureError, PolicyLostError
from k3rl.inference import AsyncEngine, AsyncSession, Engine, Sampling, TurnRules
from k3rl.model import Model, ModelConfig
from k3rl.sync import Publication
from k3rl.types import TokenLog


@dataclass(frozen=True, kw_only=True, slots=True)
class _Live:
    """An open session and the episode worker that it belongs to."""

    owner: str
    session: AsyncSession


class PolicyWorker:
    """Made a Ray actor by the pool, which calls `start`. Weights come by `publish`, never from disk.

    An engine that has failed will never sample again: every call then raises PolicyLostError, as if the process were
    gone, so that the pool puts a new worker in its place.
    """

    def __init__(self, model_config: ModelConfig, tokenizer: str, rollout: RolloutSection) -> None:
        self._model_config, self._tokenizer, self._rollout = model_config, tokenizer, rollout
        self._live: dict[int, _Live] = {}
        self._ids = itertools.count()
        self._version: int | None = None

    async def start(self) -> None:
        """Make the engine. Not done at construction, where Ray would wrap an error."""
        rollout = self._rollout
        torch.set_num_threads(rollout.policy_threads)
        renderer = XtmlRenderer(load_tokenizer(self._tokenizer))
        rules = TurnRules(stop=renderer.stop_token, close_thinking=tuple(renderer.close_thinking))
        engine = Engine(Model(self._model_config), slots=rollout.slots, max_context=rollout.max_context, rules=rules)
        self._engine = AsyncEngine(engine, wait_seconds=rollout.deadline_seconds)

    async def check(self) -> None:
        """Raises PolicyLostError once the engine has failed."""
        if self._engine.failure:
            raise PolicyLostError(self._engine.failure)

    async def publish(self, publication: Publication) -> int:
        """Apply between two decode steps and verify; raises SyncError. Returns the version now served."""
        with self._lost_with_the_engine():
            await self._engine.publish(publication)
        self._version = publication.version
        return publication.version

    async def open(
        self, prompt: list[int], *, name: str, owner: str, seed: int, temperature: float, context: int
    ) -> int:
        """A new session on a prompt, `name` for errors; prompts shared by a group are computed once."""
        if self._version is None:
            raise InfrastructureError("the policy worker holds no published weights yet")
        with self._lost_with_the_engine():
            session = await self._engine.open(
                prompt,
                seed=seed,
                sampling=Sampling(temperature=temperature),
                group_key=name,
                context=min(context, self._rollout.max_context),
            )
        identity = next(self._ids)
        self._live[identity] = _Live(owner=owner, session=session)
        return identity

    async def turn(
        self, session: int, given: list[int], *, max_tokens: int, thinking_budget: int | None
    ) -> tuple[list[int], str]:
        """See `episode.Session.turn`."""
        live = self._live[session].session
        with self._lost_with_the_engine():
            turn = await live.turn(given, max_tokens=max_tokens, thinking_budget=thinking_budget)
        return list(turn.tokens), turn.stop

    async def close(self, session: int) -> TokenLog:
        """The finished token list with log-probabilities, versions and routes."""
        with self._lost_with_the_engine():
            return await self._live.pop(session).session.close()

    async def abort(self, session: int) -> None:
        """Forget a session whose episode failed."""
        live = self._live.pop(session, None)
        if live is not None:
            live.session.abort()

    async def drop(self, owner: str) -> None:
        """Forget every session of an episode worker that died."""
        for identity in [i for i, live in self._live.items() if live.owner == owner]:
            await self.abort(identity)

    @contextmanager
    def _lost_with_the_engine(self) -> Iterator[None]:
        try:
            yield
        except InfrastructureError as error:
            if not self._engine.failure:
                raise
            raise PolicyLostError(str(error)) from error
