"""Parsing back what was rendered, and words for everything a model may get wrong."""

from __future__ import annotations

import re

import pytest
from chat_strategies import assistants, texts
from hypothesis import given, settings
from hypothesis import strategies as st

from k3rl.chat import Marker, ParsedTurn, XtmlRenderer, canonical, nano_tokenizer, problem_message
from k3rl.types import Message, ToolCall

TOKENIZER = nano_tokenizer()
RENDERER = XtmlRenderer(TOKENIZER)
MARKER = re.compile("(" + "|".join(re.escape(marker.value) for marker in Marker) + ")")


def tokens_of(text: str) -> list[int]:
    """Ids of a turn written as text with real markers."""
    by_name = {marker.value: marker for marker in Marker}
    return TOKENIZER.encode_pieces(by_name.get(part, part) for part in MARKER.split(text))


def parse(tokens: list[int]) -> ParsedTurn:
    parser = RENDERER.parser()
    parser.feed_many(tokens)
    return parser.result()


def turn(tools: str, response: str = "<|open|>response<|sep|><|close|>response<|sep|>") -> str:
    return (
        f"<|close|>think<|sep|>{response}<|open|>tools<|sep|>{tools}<|close|>tools<|sep|>"
        "<|close|>message<|sep|><|end_of_msg|>"
    )


def call(body: str, header: str = 'call tool="view" index="1"') -> str:
    return f"<|open|>{header}<|sep|>{body}<|close|>call<|sep|>"


def argument(value: str, kind: str = "string", key: str = "path") -> str:
    return f'<|open|>argument key="{key}" type="{kind}"<|sep|>{value}<|close|>argument<|sep|>'


@given(assistants)
def test_render_then_parse_is_canonical(message: Message) -> None:
    parser = RENDERER.parser()
    tokens = RENDERER.assistant(message)
    parser.feed_many(tokens[:-1])
    assert not parser.done
    parser.feed(tokens[-1])
    assert parser.done
    result = parser.result()
    assert result.problems == ()
    assert result.message == canonical(message)
    assert RENDERER.assistant(result.message) == tokens


@given(texts, st.integers(0, 10**6))
def test_spelling_by_other_tokens_parses_alike(text: str, seed: int) -> None:
    """A policy may spell a text byte by byte: the bytes count, not the tokens."""
    message = canonical(Message(role="assistant", content=text, reasoning=text))
    spelled: list[int] = []
    for i, token in enumerate(RENDERER.assistant(message)):
        data = TOKENIZER.token_bytes(token)
        spelled += list(data) if data is not None and (seed >> i % 20) & 1 else [token]
    assert parse(spelled).message == message


@settings(max_examples=200)
@given(st.data())
def test_token_soup_never_raises(data: st.DataObject) -> None:
    """Random tokens, fragments of real turns and ids outside the vocabulary."""
    fragments = [
        turn(call(argument("x"))),
        call(argument("[1", "array")),
        "<|open|>tools<|sep|>",
        "<|close|>think<|sep|>",
    ]
    pieces = st.one_of(
        st.lists(st.integers(-2, TOKENIZER.vocab_size + 2), max_size=8),
        st.sampled_from([[TOKENIZER.id(marker)] for marker in Marker]),
        st.sampled_from(fragments).map(tokens_of),
        st.sampled_from(fragments).map(lambda text: tokens_of(text)[:7]),
    )
    tokens = [token for piece in data.draw(st.lists(pieces, max_size=8)) for token in piece]
    parser = RENDERER.parser()
    for token in tokens:
        parser.feed(token)
        assert parser.thinking in (True, False)
    result = parser.result()
    assert result.message == canonical(result.message)
    assert bool(result.problems) or parser.done
    assert not (result.problems and result.message.tool_calls)
    assert result.thinking_tokens <= len(tokens)
    closing = RENDERER.close_turn(tokens)
    assert (closing == []) == parser.done
    assert not closing or closing[-1] == RENDERER.stop_token


def test_a_call_as_one_json_block() -> None:
    block = '<|open|>json type="object"<|sep|>{"path": "a", "n": 3}<|close|>json<|sep|>'
    assert parse(tokens_of(turn(call(block)))).message.tool_calls == (
        ToolCall(id="view:1", name="view", arguments={"path": "a", "n": 3}),
    )


def test_missing_response_and_blanks_between_tags_are_forgiven() -> None:
    result = parse(tokens_of(turn(" \n" + call("\n" + argument("fig") + " "), response="")))
    assert result.problems == ()
    assert result.message.tool_calls == (ToolCall(id="view:1", name="view", arguments={"path": "fig"}),)


def test_thinking_is_what_stands_inside_the_channel() -> None:
    parser = RENDERER.parser()
    seen = []
    for token in tokens_of("fig oak<|close|>think<|sep|><|open|>response<|sep|>done<|close|>response<|sep|>"):
        seen.append(parser.thinking)
        parser.feed(token)
    assert seen[:4] == [True] * 4  # fig, blank, oak, and the marker that starts the closing tag
    assert not any(seen[4:])
    assert parser.result().thinking_tokens == 3
    assert parser.result().message == Message(role="assistant", reasoning="fig oak", content="done")
    assert parser.result().problems == ("the turn was cut off before its end",)


def test_a_cut_turn_keeps_what_was_said_and_runs_nothing() -> None:
    whole = tokens_of(turn(call(argument("fig")), response="<|open|>response<|sep|>so<|close|>response<|sep|>"))
    result = parse(whole[:-1])
    assert result.message == Message(role="assistant", content="so")
    assert result.problems == ("the turn was cut off before its end",)
    assert parse(tokens_of("<|close|>think<|sep|><|open|>response<|sep|>half")).message.content == "half"


DEEP = "[" * 70 + "]" * 70
DEEPER = "[" * 100_000 + "]" * 100_000


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("<|end_of_msg|>", "the message ended before think was closed"),
        ("<|close|>think<|sep|><|end_of_msg|>", "the message ended before message was closed"),
        ("<|close|>think<|sep|><|close|>message<|sep|><|end_of_msg|>", "there is neither a response nor a call"),
        ("<|open|>response<|sep|>", "response cannot stand inside think"),
        ("<|close|>response<|sep|>", "response was closed inside think"),
        ("<|sep|>", "a tag was ended that was never started"),
        ("<|open|><|open|>", "a tag was started inside another tag"),
        ("<|close|>think<|sep|><|open|>Tools!<|sep|>", "a tag could not be read"),
        ("<|close|>think<|sep|><|open|>think<|sep|>", "think cannot follow think"),
        ("<|close|>think<|sep|><|open|>tools<|sep|><|close|>tools<|sep|><|open|>response<|sep|>", "tools has no call"),
        ("x[PAD]", "a special token stands inside the message"),
        (
            "<|close|>think<|sep|>so<|open|>response<|sep|><|close|>response<|sep|><|close|>message<|sep|>x<|end_of_msg|>",
            "text inside message but outside its parts",
        ),
        (turn(""), "tools has no call"),
        (turn(call("", 'call tool="view"')), "call has the wrong attributes"),
        (turn(call("", 'call tool="" index="1"')), "a call names no tool"),
        (turn(call("", 'call tool="view" index="2"')), "the call of view must have the index 1"),
        (turn(call("fig")), "text inside call but outside its parts"),
        (turn(call(argument("x", "text"))), "path has the unknown type 'text'"),
        (turn(call(argument("x", "number"))), "path is not a valid number"),
        (turn(call(argument("3", "boolean"))), "path is not a valid boolean"),
        (turn(call(argument("NaN", "number"))), "path is not a valid number"),
        (turn(call(argument("1e999", "number"))), "path is not a valid number"),
        (turn(call(argument("9" * 5000, "number"))), "path is not a valid number"),
        (turn(call(argument(DEEP, "array"))), "path is not a valid array"),
        (turn(call(argument(DEEPER, "array"))), "path is not a valid array"),
        (turn(call(argument("1") + argument("2"))), "path was given twice"),
        (turn(call('<|open|>json type="array"<|sep|>[]<|close|>json<|sep|>')), "json must have the type 'object'"),
        (turn(call(argument("x"))) + "x", "text after the end of the message"),
    ],
)
def test_each_fault_has_its_words(text: str, problem: str) -> None:
    result = parse(tokens_of(text))
    assert result.problems[0] == problem
    assert result.message.tool_calls == ()


def test_broken_utf8_is_a_problem() -> None:
    tokens = tokens_of(turn(call(argument("x"))))
    place = tokens.index(TOKENIZER.encode("x")[0])
    result = parse([*tokens[:place], 0xC3, *tokens[place:]])
    assert result.problems == ("the text of argument is not valid UTF-8",)


def test_a_good_call_beside_a_bad_one_does_not_run() -> None:
    bad = call(argument("x", "number"), 'call tool="edit" index="2"')
    result = parse(tokens_of(turn(call(argument("fig")) + bad)))
    assert result.problems == ("path is not a valid number",)
    assert result.message.tool_calls == ()


def test_problems_become_one_observation() -> None:
    message = problem_message(("tools has no call", "a call names no tool"))
    assert message == canonical(message)
    assert message.content == "error: tools has no call; a call names no tool"
    assert message.role == "tool"
