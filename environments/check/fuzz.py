"""Policies that cannot know the answer: silence, and random calls, right and wrong in form."""

from __future__ import annotations

import random
from typing import Any

from k3rl.environment import Solution
from k3rl.types import Json, Message, Task, Tool, ToolCall

ODD: tuple[Json, ...] = ("", "é\u2028\x00\x1b[2J", "x" * 5000, "<|end_of_msg|>", "../../etc/passwd", "-1", 0, -1, 1e308,
                         None, True, [], {}, [["a"]], {"a": {"b": 1}})  # fmt: skip
TURNS = 5


async def silence(task: Task) -> Solution:
    """Nothing but a final message."""
    yield Message(role="assistant", content="done")


async def random_calls(task: Task) -> Solution:
    """A few turns of random calls, with values of the declared types or without, then an answer of random words."""
    rng = random.Random(f"fuzz/{task.id}")
    words = task.messages[-1].content.split() or ["x"]
    for _ in range(min(TURNS, task.limits.turns - 1)):
        calls = tuple(_call(rng, task, words, number) for number in range(1, rng.randint(1, 2) + 1))
        yield Message(role="assistant", content=rng.choice(("", "ok")), tool_calls=calls)
    yield Message(role="assistant", content=" ".join(rng.choices(words, k=3)))


def _call(rng: random.Random, task: Task, words: list[str], number: int) -> ToolCall:
    tool = rng.choice(task.tools) if rng.random() < 0.9 else Tool(name="no_such_tool")
    properties = dict(tool.parameters.get("properties", {}))
    arguments: dict[str, Any] = {name: _value(rng, schema, words) for name, schema in properties.items()}
    if arguments and rng.random() < 0.1:
        arguments.pop(rng.choice(list(arguments)))
    if rng.random() < 0.05:
        arguments["unknown"] = 1
    return ToolCall(id=f"{tool.name}:{number}", name=tool.name, arguments=arguments)


def _value(rng: random.Random, schema: dict[str, Json], words: list[str]) -> Json:
    if rng.random() < 0.2:
        return rng.choice(ODD)
    if "enum" in schema:
        return rng.choice(schema["enum"])
    match schema.get("type"):
        case "string":
            return " ".join(rng.choices(words, k=rng.randint(1, 4)))
        case "integer":
            return rng.randint(-2, 20)
        case "number":
            return rng.uniform(-2, 20)
        case "boolean":
            return rng.random() < 0.5
        case "array":
            return [_value(rng, schema.get("items", {}), words) for _ in range(rng.randint(0, 3))]
        case "object":
            inner = schema.get("properties", {})
            return {name: _value(rng, property_schema, words) for name, property_schema in inner.items()}
        case _:
            return rng.choice(ODD)
