"""Every mistake of a call is an observation; nothing runs after the end."""

import pytest

from k3rl.environments.tool_environment import CALLS, ToolEnvironment, bounded
from k3rl.errors import AgentFault, EnvironmentFault
from k3rl.types import Message, Task, Tool, ToolCall

SCHEMA = {
    "type": "object",
    "properties": {"count": {"type": "integer", "minimum": 1}, "word": {"type": "string"}},
    "required": ["count"],
}
TASK = Task(
    domain="test",
    id="test/train/x/1/0-0",
    split="train",
    family="x",
    level=1,
    seed=0,
    messages=(Message(role="user", content="go"),),
    tools=(Tool(name="repeat", parameters=SCHEMA), Tool(name="absent"), Tool(name="refuse")),
)


class Repeating(ToolEnvironment):
    observation_limit = 100
    released = 0

    async def tool_repeat(self, count: int, word: str = "w") -> str:
        return word * count

    async def tool_refuse(self) -> str:
        raise AgentFault("not now")

    async def release(self) -> None:
        self.released += 1


async def answer(name: str, **arguments: object) -> str:
    environment = Repeating(TASK)
    call = ToolCall(id=f"{name}:1", name=name, arguments=arguments)
    result = await environment.step(Message(role="assistant", tool_calls=(call,)))
    (message,) = result.messages
    assert (message.role, message.name, message.tool_call_id) == ("tool", name, f"{name}:1")
    assert not result.terminated
    return message.content


async def test_a_right_call_is_run() -> None:
    assert await answer("repeat", count=3) == "www"
    assert await answer("repeat", count=2, word="ab") == "abab"


async def test_wrong_calls_are_told() -> None:
    assert await answer("other") == "error: no tool 'other'; there is repeat, absent, refuse"
    assert await answer("repeat") == "error: 'count' is a required property"
    assert await answer("repeat", count="3") == "error: count: '3' is not of type 'integer'"
    assert await answer("repeat", count=0) == "error: count: 0 is less than the minimum of 1"
    assert "'many' was unexpected" in await answer("repeat", count=1, many=2)
    assert await answer("refuse") == "error: not now"
    assert len(await answer("repeat", count="x" * 10_000)) < 300


async def test_a_tool_without_a_method_is_the_domains_fault() -> None:
    with pytest.raises(EnvironmentFault, match="no tool_absent"):
        await answer("absent")


async def test_long_observations_keep_both_ends() -> None:
    text = await answer("repeat", count=500)
    assert text == f"{'w' * 66}\n[401 characters cut]\n{'w' * 33}"
    assert bounded("abc", 3) == "abc"


async def test_the_first_message_without_calls_ends_the_episode() -> None:
    environment = Repeating(TASK)
    result = await environment.step(Message(role="assistant", content="bye"))
    assert (result.terminated, result.messages) == (True, ())
    assert await environment.artifacts() == {"answer": "bye"}
    with pytest.raises(EnvironmentFault, match="after the end"):
        await environment.step(Message(role="assistant", content="again"))


async def test_calls_of_one_message_are_run_in_order_up_to_a_number() -> None:
    calls = tuple(ToolCall(id=f"repeat:{n}", name="repeat", arguments={"count": n}) for n in range(1, CALLS + 2))
    result = await Repeating(TASK).step(Message(role="assistant", tool_calls=calls))
    assert [message.content for message in result.messages[:2]] == ["w", "ww"]
    assert result.messages[-1].content == f"error: only the first {CALLS} calls of a message are run"
    assert [message.tool_call_id for message in result.messages] == [call.id for call in calls]


async def test_close_releases_once() -> None:
    environment = Repeating(TASK)
    await environment.close()
    await environment.close()
    assert environment.released == 1
    with pytest.raises(EnvironmentFault):
        await environment.step(Message(role="assistant", content="x"))
