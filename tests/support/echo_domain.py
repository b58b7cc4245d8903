"""A domain without a sandbox, for tests of what surrounds domains: call `echo` with the word of the prompt."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from random import Random

from k3rl.environment import Solution, StepResult
from k3rl.environments.pools import WORDS
from k3rl.types import Json, Limits, Message, Score, Split, Task, Tool, ToolCall

TOOL = Tool(
    name="echo", parameters={"type": "object", "properties": {"text": {"type": "string"}}, "required": ["text"]}
)


class EchoDomain:
    """Level n asks for n words. `fail_every`: every so many opened episodes raise RuntimeError, for fault tests."""

    name = "echo"
    levels = 2
    families = ("echo",)
    heldout = ("shout",)

    def __init__(self, fail_every: int = 0) -> None:
        self._fail_every, self._opened = fail_every, 0

    def task(self, split: Split, *, seed: int, level: int, index: int, family: str | None = None) -> Task:
        family = family or ("shout" if split == "test_heldout" else "echo")
        rng = Random(f"echo/{split}/{seed}/{family}/{level}/{index}")
        words = " ".join(rng.choice(WORDS) for _ in range(level))
        return Task(
            domain=self.name,
            id=f"echo/{split}/{family}/{level}/{seed}-{index}",
            split=split,
            family=family,
            level=level,
            seed=seed,
            messages=(Message(role="user", content=f"{family} {words}"),),
            tools=(TOOL,),
            limits=Limits(turns=3, seconds=10, context=640, turn_tokens=96),
            payload={"words": words},
        )

    async def open(self, task: Task) -> EchoEnvironment:
        self._opened += 1
        if self._fail_every and self._opened % self._fail_every == 0:
            raise RuntimeError("the echo is broken on purpose")
        return EchoEnvironment(task)

    async def score(self, task: Task, artifacts: Mapping[str, Json]) -> Score:
        right = float(artifacts["echoed"] == [task.payload["words"]])
        return Score(reward=right, parts={"echoed": right})

    async def solve(self, task: Task, variant: int = 0) -> Solution:
        arguments = {"text": task.payload["words"]}
        yield Message(role="assistant", tool_calls=(ToolCall(id="echo:1", name="echo", arguments=arguments),))
        yield Message(role="assistant", content="done")

    def exploits(self, task: Task) -> Mapping[str, Callable[[], Solution]]:
        return {"says it is done": functools.partial(_say_done)}

    async def close(self) -> None:
        """Holds nothing."""


class EchoEnvironment:
    """Remembers what was echoed."""

    def __init__(self, task: Task) -> None:
        self.messages, self.tools = task.messages, task.tools
        self._echoed: list[str] = []

    async def step(self, message: Message) -> StepResult:
        if not message.tool_calls:
            return StepResult(terminated=True)
        self._echoed += [str(call.arguments.get("text")) for call in message.tool_calls]
        return StepResult(
            messages=tuple(
                Message(role="tool", name=call.name, tool_call_id=call.id, content="ok") for call in message.tool_calls
            )
        )

    async def artifacts(self) -> Mapping[str, Json]:
        return {"echoed": self._echoed}

    async def close(self) -> None:
        """Holds nothing."""


async def _say_done() -> Solution:
    yield Message(role="assistant", content="done")
