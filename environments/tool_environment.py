"""The common part of environments with tools: check each call, run it, turn every mistake into an observation.

A domain subclasses it with one method per declared tool, `async def tool_<name>(self, **arguments) -> str`, and with
`artifacts` and `release`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import lru_cache
from typing import Any

from jsonschema import Draft202012Validator
from jsonschema.exceptions import best_match

from k3rl.environment import StepResult
from k3rl.errors import AgentFault, EnvironmentFault
from k3rl.types import Json, Message, Task, Tool, ToolCall

CALLS = 8  # tool calls of one message that are run


class ToolEnvironment:
    """`observation_limit`: characters of one observation; the middle of a longer one is cut out."""

    observation_limit = 2000

    def __init__(self, task: Task) -> None:
        self.task = task
        self.answer: str | None = None  # the final message's text, once given
        self._validators = {tool.name: _validator(tool) for tool in task.tools}
        self._closed = False

    @property
    def messages(self) -> tuple[Message, ...]:
        """The prompt."""
        return self.task.messages

    @property
    def tools(self) -> tuple[Tool, ...]:
        """The tools of this episode."""
        return self.task.tools

    async def step(self, message: Message) -> StepResult:
        """Run the message's calls in order; a message without calls is the final answer."""
        if self.answer is not None or self._closed:
            raise EnvironmentFault(f"{self.task.id}: a step after the end of the episode")
        if not message.tool_calls:
            self.answer = message.content
            return StepResult(terminated=True)
        observations = []
        for number, call in enumerate(message.tool_calls):
            if number < CALLS:
                text = await self._run(call)
            else:
                text = f"error: only the first {CALLS} calls of a message are run"
            text = bounded(text, self.observation_limit)
            observations.append(Message(role="tool", name=call.name, tool_call_id=call.id, content=text))
        return StepResult(messages=tuple(observations))

    async def artifacts(self) -> Mapping[str, Json]:
        """What the agent left; here the final answer alone."""
        return {"answer": self.answer or ""}

    async def close(self) -> None:
        """Release once, whatever happened before."""
        if not self._closed:
            self._closed = True
            await self.release()

    async def release(self) -> None:
        """Give back what the episode holds."""

    async def _run(self, call: ToolCall) -> str:
        validator = self._validators.get(call.name)
        if validator is None:
            return f"error: no tool {call.name!r}; there is {', '.join(self._validators)}"
        error = best_match(validator.iter_errors(dict(call.arguments)))
        if error is not None:
            where = ".".join(map(str, error.absolute_path))
            return f"error: {where + ': ' if where else ''}{bounded(error.message, 160)}"
        method: Any = getattr(self, f"tool_{call.name}", None)
        if method is None:
            raise EnvironmentFault(f"{type(self).__name__} declares the tool {call.name!r} but has no tool_{call.name}")
        try:
            return str(await method(**call.arguments))
        except AgentFault as fault:
            return f"error: {fault}"


def bounded(text: str, limit: int) -> str:
    """The text, or its two ends with a count of what is missing between them."""
    if len(text) <= limit:
        return text
    head, tail = text[: limit * 2 // 3], text[len(text) - limit // 3 :]
    return f"{head}\n[{len(text) - len(head) - len(tail)} characters cut]\n{tail}"


def _validator(tool: Tool) -> Draft202012Validator:
    """Declared properties are all there are: an unknown argument is a mistake that the agent should hear of."""
    return _compiled(json.dumps({"type": "object", "additionalProperties": False, **tool.parameters}))


@lru_cache(maxsize=256)
def _compiled(schema: str) -> Draft202012Validator:
    """Checking a schema costs milliseconds, and every episode of a domain has the same few."""
    parsed = json.loads(schema)
    Draft202012Validator.check_schema(parsed)
    return Draft202012Validator(parsed)
