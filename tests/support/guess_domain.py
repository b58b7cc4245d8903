"""A domain that chance can win, for tests of training: say a word of the even half of the pool, twice at level 2."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from random import Random

from k3rl.environment import Solution, StepResult
from k3rl.environments.pools import WORDS
from k3rl.types import Json, Limits, Message, Score, Split, Task


class GuessDomain:
    """`fail_every`: every so many opened episodes raise RuntimeError, for tests of faults."""

    name = "guess"
    levels = 2
    families = ("say",)
    heldout = ("tell",)

    def __init__(self, fail_every: int = 0) -> None:
        self._fail_every, self._opened = fail_every, 0

    def task(self, split: Split, *, seed: int, level: int, index: int, family: str | None = None) -> Task:
        family = family or ("tell" if split == "test_heldout" else "say")
        rng = Random(f"guess/{split}/{seed}/{family}/{level}/{index}")
        return Task(
            domain=self.name,
            id=f"guess/{split}/{family}/{level}/{seed}-{index}",
            split=split,
            family=family,
            level=level,
            seed=seed,
            messages=(Message(role="user", content=f"{family} {rng.choice(WORDS)}"),),
            tools=(),
            limits=Limits(turns=3, seconds=30, context=96, turn_tokens=24),
        )

    async def open(self, task: Task) -> GuessEnvironment:
        self._opened += 1
        if self._fail_every and self._opened % self._fail_every == 0:
            raise RuntimeError("the guess is broken on purpose")
        return GuessEnvironment(task)

    async def score(self, task: Task, artifacts: Mapping[str, Json]) -> Score:
        even = [word in WORDS and WORDS.index(word) % 2 == 0 for word in artifacts["said"]]
        return Score(reward=float(len(even) == task.level and all(even)), parts={"even": float(sum(even))})

    async def solve(self, task: Task, variant: int = 0) -> Solution:
        for turn in range(task.level):
            yield Message(role="assistant", content=WORDS[2 * (variant + turn)])

    def exploits(self, task: Task) -> Mapping[str, Callable[[], Solution]]:
        return {}

    async def close(self) -> None:
        """Holds nothing."""


class GuessEnvironment:
    """Hears `level` words."""

    def __init__(self, task: Task) -> None:
        self.messages, self.tools, self._wanted = task.messages, task.tools, task.level
        self._said: list[str] = []

    async def step(self, message: Message) -> StepResult:
        self._said.append(message.content)
        if len(self._said) < self._wanted:
            return StepResult(messages=(Message(role="user", content="again"),))
        return StepResult(terminated=True)

    async def artifacts(self) -> Mapping[str, Json]:
        return {"said": self._said}

    async def close(self) -> None:
        """Holds nothing."""
