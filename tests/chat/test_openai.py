"""OpenAI-style requests, the seeds' example first."""

from __future__ import annotations

from typing import Any

import pytest

from k3rl.chat import ChatRequest, XtmlRenderer, from_openai, nano_tokenizer
from k3rl.errors import UserError
from k3rl.types import Message, Tier, Tool, ToolCall


def test_the_example_of_the_seeds_is_accepted_as_it_stands() -> None:
    """Consecutive assistant messages, `content: null`, tools without `parameters`, `thinking_budget: "max"`."""
    request = {
        "model": "k3",
        "thinking_budget": "max",
        "tools": [{"type": "function", "function": {"name": "search"}}],
        "messages": [
            {"role": "user", "content": "Find the fig."},
            {"role": "assistant", "content": None, "reasoning_content": "I should look."},
            {
                "role": "assistant",
                "content": None,
                "tool_calls": [
                    {
                        "id": "call_a",
                        "type": "function",
                        "function": {"name": "search", "arguments": '{"q": "fig", "n": 3}'},
                    }
                ],
            },
            {"role": "tool", "tool_call_id": "call_a", "content": "here"},
        ],
    }
    read = from_openai(request)
    assert read == ChatRequest(
        messages=(
            Message(role="user", content="Find the fig."),
            Message(
                role="assistant",
                reasoning="I should look.",
                tool_calls=(ToolCall(id="search:1", name="search", arguments={"q": "fig", "n": 3}),),
            ),
            Message(role="tool", name="search", tool_call_id="search:1", content="here"),
        ),
        tools=(Tool(name="search"),),
        tier=Tier.MAX,
    )
    text = nano_tokenizer().decode(XtmlRenderer(nano_tokenizer()).prompt(read.messages, read.tools, read.tier))
    assert text.count('<|open|>message role="assistant"<|sep|>') == 2  # the merged turn and the one to come
    assert '[{"function":{"name":"search"},"type":"function"}]' in text
    assert "<|open|>think<|sep|>I should look.<|close|>think<|sep|>" in text
    assert '<|open|>argument key="n" type="number"<|sep|>3<|close|>argument<|sep|>' in text
    assert '<|open|>message role="tool" tool="search" index="1"<|sep|>here' in text


def calls(*names: str) -> dict[str, Any]:
    return {
        "role": "assistant",
        "tool_calls": [{"id": f"id-{n}", "type": "function", "function": {"name": n, "arguments": {}}} for n in names],
    }


def test_replies_follow_the_order_of_their_calls() -> None:
    read = from_openai(
        {
            "messages": [
                calls("a", "b", "c"),
                {"role": "tool", "tool_call_id": "id-c", "content": "3"},
                {"role": "tool", "tool_call_id": "id-a", "content": "1"},
                {"role": "tool", "tool_call_id": "id-b", "content": "2"},
            ]
        }
    )
    assert [(m.tool_call_id, m.content) for m in read.messages[1:]] == [("a:1", "1"), ("b:2", "2"), ("c:3", "3")]


def test_replies_without_an_id_are_matched_by_place() -> None:
    read = from_openai(
        {"messages": [calls("a", "b"), {"role": "tool", "content": "1"}, {"role": "tool", "content": "2"}]}
    )
    assert [m.tool_call_id for m in read.messages[1:]] == ["a:1", "b:2"]
    for call in (nameless := calls("a", "b"))["tool_calls"]:
        del call["id"]
    replies = [{"role": "tool", "content": "1"}, {"role": "tool", "content": "2"}]
    read = from_openai({"messages": [nameless, *replies]})
    assert [(m.tool_call_id, m.content) for m in read.messages[1:]] == [("a:1", "1"), ("b:2", "2")]


def test_texts_of_merged_turns_are_joined_and_calls_are_numbered_through() -> None:
    first = {**calls("a"), "content": "one", "reasoning_content": "r"}
    second = {**calls("b"), "content": [{"type": "text", "text": "tw"}, {"type": "text", "text": "o"}]}
    (merged,) = from_openai({"messages": [first, second]}).messages
    assert (merged.content, merged.reasoning) == ("one\ntwo", "r")
    assert [call.id for call in merged.tool_calls] == ["a:1", "b:2"]


def test_tier_and_options() -> None:
    assert from_openai({"messages": []}).tier is Tier.MAX
    assert from_openai({"reasoning_effort": "low"}).tier is Tier.LOW
    assert from_openai({"reasoning_effort": "high", "thinking_budget": "high"}).tier is Tier.HIGH
    read = from_openai({"tool_choice": "none", "response_format": {"type": "json_object"}})
    assert (read.tool_choice, read.response_format) == ("none", {"type": "json_object"})
    assert from_openai({"tool_choice": "auto", "response_format": {"type": "text"}}).response_format is None


def test_the_role_developer_is_system() -> None:
    (message,) = from_openai({"messages": [{"role": "developer", "content": "x"}]}).messages
    assert message == Message(role="system", content="x")


@pytest.mark.parametrize(
    ("request_", "words"),
    [
        ({"messages": "hi"}, "messages must be a list"),
        ({"messages": ["hi"]}, r"messages\[0\] must be an object"),
        ({"messages": [{"role": "robot"}]}, r"messages\[0\].role is 'robot'; it must be one of system"),
        ({"messages": [{"role": ["user"]}]}, r"messages\[0\].role is \['user'\]"),
        ({"messages": [{"role": "user", "content": 3}]}, r"messages\[0\].content must be text"),
        ({"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}, "only text parts"),
        ({"messages": [{"role": "assistant", "tool_calls": [{"function": {}}]}]}, "function.name is missing"),
        (
            {"messages": [{"role": "assistant", "tool_calls": [{"function": {"name": "a", "arguments": "{"}}]}]},
            "not JSON",
        ),
        (
            {"messages": [{"role": "assistant", "tool_calls": [{"function": {"name": "a", "arguments": "3"}}]}]},
            "object",
        ),
        ({"messages": [{"role": "tool", "content": "x"}]}, r"messages\[0\] answers 'no call'"),
        (
            {"messages": [calls("a"), {"role": "tool", "tool_call_id": "z", "content": "x"}]},
            r"messages\[1\] answers 'z'",
        ),
        ({"tools": [{"type": "function"}]}, r"tools\[0\].function.name is missing"),
        ({"reasoning_effort": "medium"}, "reasoning_effort is 'medium'; it must be one of low, high, max"),
        ({"reasoning_effort": "low", "thinking_budget": "max"}, "contradict each other"),
        ({"tool_choice": {"type": "function"}}, "tool_choice"),
        ({"response_format": {"type": "xml"}}, "response_format.type is 'xml'"),
        ({"response_format": {"type": "json_schema"}}, "response_format.json_schema must be an object"),
    ],
)
def test_what_cannot_be_read_is_told_in_one_line(request_: dict[str, Any], words: str) -> None:
    with pytest.raises(UserError, match=words) as caught:
        from_openai(request_)
    assert "\n" not in str(caught.value)
