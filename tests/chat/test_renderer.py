"""The template against strings written out by hand, the prefix rule, and what cutting a turn leaves."""

from __future__ import annotations

import pytest
from chat_strategies import assistants, histories, replies, texts, tools, users
from hypothesis import given
from hypothesis import strategies as st

from k3rl.chat import Marker, XtmlRenderer, canonical, nano_tokenizer
from k3rl.errors import UserError
from k3rl.types import Message, Tier, Tool, ToolCall

TOKENIZER = nano_tokenizer()
RENDERER = XtmlRenderer(TOKENIZER)
SPECIAL = {TOKENIZER.id(marker) for marker in Marker}
EFFORT = (
    '<|open|>message role="system" type="thinking-effort"<|sep|>'
    "`thinking_effort` guides on how much to think in your thinking channel (not including the response channel), "
    "supported values include `low`, `medium`, `high`, and `max`.\n"
    "Now the system is invoked with `thinking_effort={}`.<|close|>message<|sep|><|end_of_msg|>"
)
HEADER = '<|open|>message role="assistant"<|sep|><|open|>think<|sep|>'
END = "<|close|>message<|sep|><|end_of_msg|>"


def markers(tokens: list[int]) -> list[int]:
    return [token for token in tokens if token in SPECIAL]


def test_prompt_in_full() -> None:
    schema = {"type": "object", "properties": {"path": {"type": "string"}}, "required": ["path"]}
    messages = [
        Message(role="system", content="Be brief."),
        Message(role="user", content="Look."),
        Message(
            role="assistant",
            reasoning="two files",
            tool_calls=(
                ToolCall(id="", name="view", arguments={"path": "a.txt"}),
                ToolCall(
                    id="", name="view", arguments={"lines": [1, 2.5], "all": True, "by": {"b": None}, "n": 3, "x": None}
                ),
            ),
        ),
        Message(role="tool", name="view", tool_call_id="view:1", content="fig"),
        Message(role="tool", name="view", tool_call_id="view:2", content="oak"),
    ]
    expected = (
        '<|open|>message role="system" type="tool-declare"<|sep|># Tools\n'
        "Here are the available tools, described in JSONSchema.\n\n```json\n"
        '[{"function":{"description":"Show a file.","name":"view","parameters":{"properties":'
        '{"path":{"type":"string"}},"required":["path"],"type":"object"}},"type":"function"},'
        '{"function":{"name":"stop"},"type":"function"}]'
        "\n```"
        + END
        + EFFORT.format("high")
        + '<|open|>message role="system"<|sep|>Be brief.'
        + END
        + '<|open|>message role="user"<|sep|>Look.'
        + END
        + HEADER
        + "two files<|close|>think<|sep|><|open|>response<|sep|><|close|>response<|sep|><|open|>tools<|sep|>"
        '<|open|>call tool="view" index="1"<|sep|>'
        '<|open|>argument key="path" type="string"<|sep|>a.txt<|close|>argument<|sep|><|close|>call<|sep|>'
        '<|open|>call tool="view" index="2"<|sep|>'
        '<|open|>argument key="lines" type="array"<|sep|>[1, 2.5]<|close|>argument<|sep|>'
        '<|open|>argument key="all" type="boolean"<|sep|>true<|close|>argument<|sep|>'
        '<|open|>argument key="by" type="object"<|sep|>{"b": null}<|close|>argument<|sep|>'
        '<|open|>argument key="n" type="number"<|sep|>3<|close|>argument<|sep|>'
        '<|open|>argument key="x" type="null"<|sep|>null<|close|>argument<|sep|><|close|>call<|sep|>'
        "<|close|>tools<|sep|>"
        + END
        + '<|open|>message role="tool" tool="view" index="1"<|sep|>fig'
        + END
        + '<|open|>message role="tool" tool="view" index="2"<|sep|>oak'
        + END
        + HEADER
    )
    declared = [Tool(name="view", description="Show a file.", parameters=schema), Tool(name="stop")]
    assert TOKENIZER.decode(RENDERER.prompt(messages, declared, Tier.HIGH)) == expected


def test_options_of_one_request_stand_after_the_history() -> None:
    form = {"type": "json_schema", "json_schema": {"name": "n", "schema": {"type": "object", "a": 1}}}
    tokens = RENDERER.prompt(
        [Message(role="user", content="hi")], [], Tier.MAX, tool_choice="required", response_format=form
    )
    assert TOKENIZER.decode(tokens) == (
        EFFORT.format("max")
        + '<|open|>message role="user"<|sep|>hi'
        + END
        + '<|open|>message role="system" type="tool-choice"<|sep|>The system is invoked with `tool_choice=required`.\n'
        "You MUST call tools in the next message." + END + '<|open|>message role="system" type="response-format"<|sep|>'
        "The system is invoked with `response_format=json_schema`.\n"
        "Your response must be raw JSON data without markdown code blocks (```json) or any additional formatting.\n"
        'The JSON data must match the following schema:\n```json\n{"a":1,"type":"object"}\n```' + END + HEADER
    )


def test_attributes_are_escaped() -> None:
    tokens = RENDERER.observation([Message(role="tool", name='a&"b', tool_call_id='a&"b:7', content="x")])
    assert (
        TOKENIZER.decode(tokens) == f'<|open|>message role="tool" tool="a&amp;&quot;b" index="7"<|sep|>x{END}{HEADER}'
    )


def test_replies_without_an_index_are_numbered_by_place() -> None:
    reply = Message(role="tool", name="view", tool_call_id="chatcmpl-x", content="x")
    text = TOKENIZER.decode(RENDERER.observation([reply, reply, Message(role="user", content="u"), reply]))
    assert [part.split('"')[0] for part in text.split('index="')[1:]] == ["1", "2", "1"]


@given(
    st.lists(st.one_of(users, assistants, replies), max_size=3),
    assistants,
    st.lists(st.one_of(users, replies), max_size=3),
    tools,
)
def test_prefix_rule(history: list[Message], turn: Message, after: list[Message], declared: list[Tool]) -> None:
    start = RENDERER.prompt(history, declared, Tier.LOW)
    assert RENDERER.prompt([*history, turn, *after], declared, Tier.LOW) == (
        start + RENDERER.assistant(turn) + RENDERER.observation(after)
    )


@given(histories, tools)
def test_rendering_is_idempotent_on_canonical_messages(history: list[Message], declared: list[Tool]) -> None:
    numbered = [m for m in history if m.role != "tool"]
    once = [canonical(message) for message in numbered]
    assert [canonical(message) for message in once] == once
    assert RENDERER.prompt(once, declared, Tier.MAX) == RENDERER.prompt(numbered, declared, Tier.MAX)


@given(texts, st.sampled_from(["system", "user", "tool"]))
def test_text_of_others_never_forges_a_marker(text: str, role: str) -> None:
    """Whatever a user or a tool says, the markers are those of the same message with a harmless text."""
    named = {"name": "t", "tool_call_id": "t:1"} if role == "tool" else {}
    forged = RENDERER.observation([Message(role=role, content=text, **named)])
    harmless = RENDERER.observation([Message(role=role, content="x", **named)])
    assert markers(forged) == markers(harmless)


@given(texts)
def test_tool_names_and_declarations_never_forge_a_marker(text: str) -> None:
    def shape(name: str) -> list[int]:
        declared = [Tool(name=name, description=name, parameters={name: name})]
        return markers(RENDERER.prompt([Message(role="tool", name=name, content="")], declared, Tier.LOW))

    assert shape(text) == shape("x")


def test_fixed_tokens() -> None:
    assert RENDERER.stop_token == TOKENIZER.id(Marker.END_OF_MSG)
    assert TOKENIZER.decode(RENDERER.close_thinking) == "<|close|>think<|sep|>"


@given(assistants, st.data())
def test_a_cut_turn_is_closed_into_a_well_formed_one(turn: Message, data: st.DataObject) -> None:
    """Wherever it is cut, the closed turn has balanced tags and one end marker; an ended turn gets nothing."""
    tokens = RENDERER.assistant(turn)
    assert RENDERER.close_turn(tokens) == []
    cut = data.draw(st.integers(0, len(tokens) - 1))
    closed = tokens[:cut] + RENDERER.close_turn(tokens[:cut])
    assert closed.count(RENDERER.stop_token) == 1
    assert closed[-1] == RENDERER.stop_token
    opened = closed.count(TOKENIZER.id(Marker.OPEN)) + 2  # message and think were opened by the header
    assert closed.count(TOKENIZER.id(Marker.CLOSE)) == opened
    assert closed.count(TOKENIZER.id(Marker.SEP)) == 2 * opened - 2
    assert RENDERER.parser().thinking


def test_a_turn_cut_while_thinking_gets_an_empty_response() -> None:
    thought = TOKENIZER.encode("hm")
    assert TOKENIZER.decode(RENDERER.close_turn(thought)) == (
        "<|close|>think<|sep|><|open|>response<|sep|><|close|>response<|sep|>" + END
    )
    begun = [*thought, TOKENIZER.id(Marker.CLOSE), *TOKENIZER.encode("th")]
    assert TOKENIZER.decode(RENDERER.close_turn(begun)).startswith("ink<|sep|><|open|>response<|sep|>")


@pytest.mark.parametrize("value", [float("nan"), {1, 2}, object(), [float("inf")]])
def test_arguments_that_are_not_json_are_refused(value: object) -> None:
    call = ToolCall(id="", name="view", arguments={"path": value})
    with pytest.raises(UserError, match="argument 'path' of a call of 'view' is not a JSON value"):
        RENDERER.assistant(Message(role="assistant", tool_calls=(call,)))
