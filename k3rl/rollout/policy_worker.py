"""The Ray actor that samples: one engine in a thread of its own, many sessions at once.

It serves nothing before a published version has been applied and verified.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass

import torch

from k3rl.chat import XtmlRenderer, load_tokenizer
from k3rl.config import RolloutSection
from k3rl.errors import InfrastructureError
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
    """Made a Ray actor by the pool. Weights come by `publish`, never from disk."""

    def __init__(self, model_config: ModelConfig, tokenizer: str, rollout: RolloutSection) -> None:
        torch.set_num_threads(rollout.policy_threads)
        renderer = XtmlRenderer(load_tokenizer(tokenizer))
        rules = TurnRules(stop=renderer.stop_token, close_thinking=tuple(renderer.close_thinking))
        engine = Engine(Model(model_config), slots=rollout.slots, max_context=rollout.max_context, rules=rules)
        self._engine = AsyncEngine(engine, wait_seconds=rollout.deadline_seconds)
        self._max_context = rollout.max_context
        self._live: dict[int, _Live] = {}
        self._ids = itertools.count()
        self._version: int | None = None

    async def publish(self, publication: Publication) -> int:
        """Apply between two decode steps and verify; raises SyncError. Returns the version now served."""
        await self._engine.publish(publication)
        self._version = publication.version
        return publication.version

    async def open(
        self, prompt: list[int], *, name: str, owner: str, seed: int, temperature: float, context: int
    ) -> int:
        """A new session on a prompt, `name` for errors; prompts shared by a group are computed once."""
        if self._version is None:
            raise InfrastructureError("the policy worker holds no published weights yet")
        session = await self._engine.open(
            prompt,
            seed=seed,
            sampling=Sampling(temperature=temperature),
            group_key=name,
            context=min(context, self._max_context),
        )
        identity = next(self._ids)
        self._live[identity] = _Live(owner=owner, session=session)
        return identity

    async def turn(
        self, session: int, given: list[int], *, max_tokens: int, thinking_budget: int | None
    ) -> tuple[list[int], str]:
        """See `episode.Session.turn`."""
        live = self._live[session].session
        turn = await live.turn(given, max_tokens=max_tokens, thinking_budget=thinking_budget)
        return list(turn.tokens), turn.stop

    async def close(self, session: int) -> TokenLog:
        """The finished token list with log-probabilities, versions and routes."""
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
