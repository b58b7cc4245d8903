"""One agent episode: prompt, then turns of sampled tokens and observations, then the score.

The same loop drives a model, a reference solver, a cheat or a fuzzer: they differ in the `Policy` alone. Environments
see messages, policies see tokens; what a policy sampled is never rendered again.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import time
from collections import defaultdict
from collections.abc import Awaitable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Protocol, TypeVar

from k3rl.chat import ParsedTurn, XtmlRenderer, problem_message
from k3rl.environment import Domain, Environment, StepResult
from k3rl.errors import DeadlineError, EnvironmentFault, InfrastructureError, K3rlError, PolicyLostError, UserError
from k3rl.time_limit import TimeLimit
from k3rl.types import Score, Scored, StopReason, Task, Tier, TokenLog, Trajectory, Turn

Result = TypeVar("Result")


class SampledTurn(Protocol):
    """What a policy appended for one turn: its tokens (forced ones included) and why it stopped.

    `stop`: "stop" (end marker sampled), "length" (max_tokens), "context" (no room left), "done" (a script is over).
    """

    @property
    def tokens(self) -> Sequence[int]: ...

    @property
    def stop(self) -> str: ...


class Session(Protocol):
    """A policy's side of one episode: an append-only token list."""

    async def turn(
        self, given: Sequence[int], *, after: StepResult | None, max_tokens: int, thinking_budget: int | None
    ) -> SampledTurn:
        """Append `given` (not sampled), then sample a turn. `after` is what `given` renders; scripts read it."""

    async def close(self) -> TokenLog:
        """End the session and hand over its tokens."""

    async def abort(self) -> None:
        """Drop the session; safe to call at any time, also after `close`."""


class Policy(Protocol):
    """Something that can play: opens a session on a rendered prompt."""

    async def open(self, task: Task, prompt: Sequence[int], *, seed: int) -> Session: ...


@dataclass(frozen=True, kw_only=True, slots=True)
class EpisodeLimits:
    """Limits of the deployment, beside those of the task: context of an engine slot, thinking tokens per turn by tier,
    attempts when infrastructure fails, and the longest wait for one turn and for one call of the environment (open,
    step, artifacts, score, close; queues for a sandbox do not count), seconds."""

    context: int
    thinking: Mapping[Tier, int]
    retries: int = 3
    turn_deadline: float = 120.0
    call_deadline: float = 60.0


async def run_episode(
    domain: Domain,
    task: Task,
    policy: Policy,
    renderer: XtmlRenderer,
    limits: EpisodeLimits,
    *,
    sample: int,
    seed: int,
) -> Scored:
    """Play `task` to its end and score it.

    Infrastructure faults are retried from the start with the same seed, then reported as a trajectory that is not
    trained on; so is an exception in the domain's own code (its `close` too), which is not retried. PolicyLostError
    passes through.
    """
    started = time.monotonic()
    attempts = 0
    while True:
        attempts += 1
        episode = _Episode(domain, task, policy, renderer, limits)
        try:
            async with contextlib.aclosing(episode):
                stop, score = await episode.play(seed)
            return episode.scored(sample, stop, score, started)
        except PolicyLostError:
            raise
        except UserError as error:  # a setting that this task does not fit, not a fault of the domain's
            return episode.scored(sample, StopReason.INFRASTRUCTURE, None, started, error)
        except InfrastructureError as error:
            if attempts > limits.retries:
                return episode.scored(sample, StopReason.INFRASTRUCTURE, None, started, error)
        except Exception as error:  # the domain's code is anybody's: its faults are told in the trajectory
            return episode.scored(sample, StopReason.ENVIRONMENT, None, started, error)


class _Episode:
    """One attempt; holds what must be released whatever happens."""

    def __init__(
        self, domain: Domain, task: Task, policy: Policy, renderer: XtmlRenderer, limits: EpisodeLimits
    ) -> None:
        self.domain, self.task, self.policy, self.renderer, self.limits = domain, task, policy, renderer, limits
        self.environment: Environment | None = None
        self.session: Session | None = None
        self.turns: list[Turn] = []
        self.step_rewards: list[float] = []
        self.worked: dict[str, float] = defaultdict(float)  # seconds, by call of the environment
        self.log: TokenLog | None = None

    async def play(self, seed: int) -> tuple[StopReason, Score]:
        self.environment = await self._within(self.domain.open(self.task), "open")
        prompt = self.renderer.prompt(self.environment.messages, self.environment.tools, self.task.tier)
        self.session = await self.policy.open(self.task, prompt, seed=seed)
        stop = await self._turns(len(prompt))
        self.log = await self.session.close()
        artifacts = await self._within(self.environment.artifacts(), "artifacts")
        score = await self._within(self.domain.score(self.task, artifacts), "score")
        if self.step_rewards:
            score = replace(score, parts={**score.parts, "steps": math.fsum(self.step_rewards)})
        return stop, score

    async def _turns(self, length: int) -> StopReason:
        assert self.environment is not None
        context = min(self.limits.context, self.task.limits.context)
        given: list[int] = []
        result: StepResult | None = None
        while True:
            if length + len(given) >= context:
                return StopReason.TOKENS
            start = length + len(given)
            sampled = await self._sample(given, result)
            if sampled.stop == "done":
                return StopReason.ENDED
            length = start + len(sampled.tokens)
            parsed = self._parse(sampled)
            result = await self._step(parsed)
            self.turns.append(
                Turn(
                    start=start,
                    end=length,
                    message=parsed.message,
                    problems=parsed.problems,
                    observation=result.messages,
                    thinking_tokens=parsed.thinking_tokens,
                )
            )
            if result.terminated or result.truncated:
                return StopReason.ENDED
            if sampled.stop == "context":
                return StopReason.TOKENS
            if len(self.turns) >= self.task.limits.turns:
                return StopReason.TURNS
            if self.worked["step"] > self.task.limits.seconds:
                return StopReason.SECONDS
            closing = self.renderer.close_turn(sampled.tokens) if sampled.stop == "length" else []
            given = [*closing, *self.renderer.observation(result.messages)]

    async def _sample(self, given: Sequence[int], after: StepResult | None) -> SampledTurn:
        assert self.session is not None
        try:
            async with asyncio.timeout(self.limits.turn_deadline):
                return await self.session.turn(
                    given,
                    after=after,
                    max_tokens=self.task.limits.turn_tokens,
                    thinking_budget=self.limits.thinking.get(self.task.tier),
                )
        except TimeoutError as error:
            raise DeadlineError(
                f"{self.task.id}: waited {self.limits.turn_deadline:g} s for the policy to sample a turn "
                "(rollout.turn_seconds)"
            ) from error

    def _parse(self, sampled: SampledTurn) -> ParsedTurn:
        parser = self.renderer.parser()
        parser.feed_many(sampled.tokens)
        return parser.result()

    async def _step(self, parsed: ParsedTurn) -> StepResult:
        """Markup the parser could not read is answered here; the environment sees well-formed calls only."""
        assert self.environment is not None
        if parsed.problems:
            return StepResult(messages=(problem_message(parsed.problems),))
        result = await self._within(self.environment.step(parsed.message), "step")
        if result.reward is not None:
            if not math.isfinite(result.reward):
                raise EnvironmentFault(f"{self.task.id}: a step's reward is {result.reward}")
            self.step_rewards.append(result.reward)
        return result

    async def _within(self, call: Awaitable[Result], what: str) -> Result:
        """A call of the domain, cancelled at its time limit: one that hangs must not hold its episode for ever."""
        limit = TimeLimit(self.limits.call_deadline)
        try:
            async with limit:
                return await call
        except TimeoutError as error:
            if not limit.expired:  # the domain's own
                raise
            raise DeadlineError(
                f"{self.task.id}: {what} of the environment did not return within {self.limits.call_deadline:g} s "
                "(rollout.environment_seconds)"
            ) from error
        finally:
            self.worked[what] += limit.worked

    def scored(
        self, sample: int, stop: StopReason, score: Score | None, started: float, error: Exception | None = None
    ) -> Scored:
        trajectory = Trajectory(
            task=self.task,
            sample=sample,
            logs=(self.log,) if self.log is not None else (),
            turns=tuple(self.turns),
            stop=stop,
            seconds=time.monotonic() - started,
            error=_one_line(error) if error else "",
        )
        return Scored(trajectory=trajectory, score=score)

    async def aclose(self) -> None:
        try:
            if self.session is not None:
                await self.session.abort()
        finally:
            if self.environment is not None:
                await self._within(self.environment.close(), "close")


def _one_line(error: Exception) -> str:
    text = " ".join(str(error).split())
    return text if isinstance(error, K3rlError) else f"{type(error).__name__}: {text}"
