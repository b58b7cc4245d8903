"""The reference policy: a few ways to the same repair, through the agent's own tools."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from k3rl.environment import Solution
from k3rl.types import Message, Task, ToolCall

VARIANTS = 4
"""0: straight; 1: runs the tests at the end; 2: views all first, edits expressions alone; 3: looks at the tests."""


def call(name: str, **arguments: str) -> Message:
    """An assistant message with one tool call."""
    return Message(role="assistant", tool_calls=(ToolCall(id=f"{name}:1", name=name, arguments=arguments),))


async def play(messages: Iterable[Message]) -> Solution:
    """Messages one after another, whatever comes back."""
    for message in messages:
        yield message


def solution(task: Task, variant: int = 0) -> Iterator[Message]:
    """The messages of one variant."""
    variant %= VARIANTS
    bugs: list[Mapping[str, str]] = task.payload["bugs"]
    if task.level >= 4:
        yield call("test")
    views = [_views(bug, task.level, variant) for bug in bugs]
    if variant == 2:
        views = [[message for part in views for message in part], *([] for _ in views[1:])]
    for bug, part in zip(bugs, views, strict=True):
        yield from part
        old, new = (bug["old"], bug["new"]) if variant != 2 else _expression(bug, task.payload["files"][bug["path"]])
        yield call("edit", path=bug["path"], old=old, new=new)
    if variant == 1:
        yield call("test")
    yield Message(role="assistant", content="done" if variant != 1 else "fixed")


def _views(bug: Mapping[str, str], level: int, variant: int) -> list[Message]:
    """What is looked at before a bug is repaired; on level 1 the prompt shows it all."""
    tests = [call("view", path=bug["test"].split("::")[0])] if variant == 3 else []
    return [*tests, call("view", path=bug["path"])] if level > 1 else tests


def _expression(bug: Mapping[str, str], text: str) -> tuple[str, str]:
    """The two texts without the `return ` before both, if the file still holds the first of them only once."""
    old, new = bug["old"].removeprefix("return "), bug["new"].removeprefix("return ")
    if bug["new"].startswith("return ") and "\n" not in new and text.count(old) == 1:
        return old, new
    return bug["old"], bug["new"]
