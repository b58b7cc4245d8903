"""A scripted policy: the reference solver, a cheat, a fuzzer. It speaks messages; the renderer makes their tokens."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from k3rl.chat import XtmlRenderer
from k3rl.environment import Solution, StepResult
from k3rl.types import Task, TokenLog


@dataclass(frozen=True, kw_only=True, slots=True)
class ScriptedTurn:
    """A turn's rendered tokens; `stop` is "stop", or "done" when the script has no more to say."""

    tokens: Sequence[int]
    stop: str


@dataclass(frozen=True, kw_only=True, slots=True)
class ScriptedPolicy:
    """Plays `script(task)`, an async generator of assistant messages that is sent each step's result."""

    script: Callable[[Task], Solution]
    renderer: XtmlRenderer

    async def open(self, task: Task, prompt: Sequence[int], *, seed: int) -> ScriptedSession:
        return ScriptedSession(self.script(task), self.renderer, prompt)


class ScriptedSession:
    """Tokens of assistant messages count as sampled (mask 1), with log-probability 0 and version 0."""

    def __init__(self, solution: Solution, renderer: XtmlRenderer, prompt: Sequence[int]) -> None:
        self._solution, self._renderer = solution, renderer
        self._tokens = list(prompt)
        self._mask = [False] * len(prompt)

    async def turn(
        self, given: Sequence[int], *, after: StepResult | None, max_tokens: int, thinking_budget: int | None
    ) -> ScriptedTurn:
        try:
            message = await (self._solution.__anext__() if after is None else self._solution.asend(after))
        except StopAsyncIteration:
            return ScriptedTurn(tokens=(), stop="done")
        tokens = self._renderer.assistant(message)
        self._tokens += [*given, *tokens]
        self._mask += [False] * len(given) + [True] * len(tokens)
        return ScriptedTurn(tokens=tokens, stop="stop")

    async def close(self) -> TokenLog:
        count = len(self._tokens)
        mask = np.array(self._mask, dtype=bool)
        return TokenLog(
            tokens=np.array(self._tokens, dtype=np.int32),
            mask=mask,
            logprobs=np.zeros(count, dtype=np.float32),
            entropies=np.zeros(count, dtype=np.float32),
            versions=np.where(mask, 0, -1).astype(np.int32),
        )

    async def abort(self) -> None:
        # A generator that is already running its own clean-up cannot be closed again; that is all this suppresses.
        with contextlib.suppress(RuntimeError):
            await self._solution.aclose()
