"""What a domain is: a maker of tasks and of single-use environments, a scorer, and a reference solver.

Environments speak messages and tool calls, never tokens. One instance serves one episode; `close` always runs.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Mapping
from dataclasses import dataclass
from typing import Protocol, TypeAlias, runtime_checkable

from k3rl.types import Json, Message, Score, Split, Task, Tool

Solution: TypeAlias = "AsyncGenerator[Message, StepResult]"
"""A scripted policy: yields assistant messages, is sent the step's result for each."""


@dataclass(frozen=True, kw_only=True, slots=True)
class StepResult:
    """What followed an assistant message: observation messages, an optional step reward, and whether it is over.

    `reward`: summed over the episode, it is kept as the part `steps` of the score; the score's reward is what
    `Domain.score` says. `terminated`: the task's own end (final answer given); `truncated`: cut by the environment.
    """

    messages: tuple[Message, ...] = ()
    reward: float | None = None
    terminated: bool = False
    truncated: bool = False


class Environment(Protocol):
    """One live episode of one task."""

    @property
    def messages(self) -> tuple[Message, ...]:
        """The prompt."""

    @property
    def tools(self) -> tuple[Tool, ...]:
        """The tools of this episode."""

    async def step(self, message: Message) -> StepResult:
        """Run the message's tool calls in order. A message without tool calls is the agent's final answer."""

    async def artifacts(self) -> Mapping[str, Json]:
        """What the agent left, as plain values bounded in size: all that scoring may look at."""

    async def close(self) -> None:
        """Release everything; safe to call twice and after a failure."""


@runtime_checkable
class Domain(Protocol):
    """A family of tasks with one set of tools. Constructed from conf/environment/<name>.yaml by its `_target_`."""

    name: str
    levels: int  # levels are 1..levels
    families: tuple[str, ...]  # trained on
    heldout: tuple[str, ...]  # only in the split test_heldout

    def task(self, split: Split, *, seed: int, level: int, index: int, family: str | None = None) -> Task:
        """Task number `index` of an endless, reproducible sequence; splits never share one."""

    async def open(self, task: Task) -> Environment:
        """Start an episode. Raises InfrastructureError if it cannot be had now."""

    async def score(self, task: Task, artifacts: Mapping[str, Json]) -> Score:
        """Judge what was left, in a fresh place the agent never touched."""

    def solve(self, task: Task, variant: int = 0) -> Solution:
        """The reference policy; `variant` picks another phrasing, order or detour of the same solution."""

    def exploits(self, task: Task) -> Mapping[str, Callable[[], Solution]]:
        """Cheats by name, as scripted policies; every one must score 0 on tasks it does not truly solve."""

    async def close(self) -> None:
        """Release pools shared by episodes."""
