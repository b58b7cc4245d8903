"""K3's chat template (XTML) as pieces: texts and markers, before any tokenizer.

A tag is `open header sep ... close name sep`; a message is a tag followed by end_of_msg. The fixed sentences are part
of the format: K3's weights know them word for word.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Literal

from k3rl.chat.markers import Marker
from k3rl.chat.messages import call_index, dump, json_type
from k3rl.chat.tokenizer import Piece
from k3rl.types import Json, Message, Tier, Tool, ToolCall

ToolChoice = Literal["auto", "required", "none"]

_EFFORT = (
    "`thinking_effort` guides on how much to think in your thinking channel (not including the response channel), "
    "supported values include `low`, `medium`, `high`, and `max`.\n"
    "Now the system is invoked with `thinking_effort={tier}`."
)
_TOOLS = ("# Tools\nHere are the available tools, described in JSONSchema.\n\n```json\n", "\n```")
_CHOICE = {
    "required": "The system is invoked with `tool_choice=required`.\nYou MUST call tools in the next message.",
    "none": "The system is invoked with `tool_choice=none`.\nYou MUST NOT call any tools in the next message.",
}
_FORMAT = (
    "The system is invoked with `response_format={kind}`.\n"
    "Your response must be raw JSON data without markdown code blocks (```json) or any additional formatting."
)
_SCHEMA = "\nThe JSON data must match the following schema:\n```json\n{schema}\n```"


def constants() -> tuple[str, ...]:
    """The sentences of the format that never change."""
    return (*_TOOLS, *(_EFFORT.format(tier=tier.value) for tier in Tier), *_CHOICE.values())


def open_tag(tag: str, **attributes: str) -> tuple[Piece, ...]:
    """`<|open|>tag key="value"<|sep|>`."""
    header = tag + "".join(f' {key}="{escape(value)}"' for key, value in attributes.items())
    return (Marker.OPEN, header, Marker.SEP)


def close_tag(tag: str) -> tuple[Piece, ...]:
    """`<|close|>tag<|sep|>`."""
    return (Marker.CLOSE, tag, Marker.SEP)


def escape(value: str) -> str:
    """A text as an attribute's value."""
    return value.replace("&", "&amp;").replace('"', "&quot;")


def unescape(value: str) -> str:
    """The inverse of `escape`."""
    return value.replace("&quot;", '"').replace("&amp;", "&")


def preamble(tools: Sequence[Tool], tier: Tier) -> Iterator[Piece]:
    """What stands before the history and holds for all of it: tool declarations, then the thinking effort."""
    if tools:
        yield from _option("tool-declare", _compact([_declaration(tool) for tool in tools]).join(_TOOLS))
    yield from _option("thinking-effort", _EFFORT.format(tier=tier.value))


def request_options(choice: ToolChoice, response_format: Mapping[str, Json] | None) -> Iterator[Piece]:
    """What holds for the next turn only and so stands after the history: tool choice, then response format."""
    if choice != "auto":
        yield from _option("tool-choice", _CHOICE[choice])
    if response_format is None:
        return
    kind = response_format["type"]
    text = _FORMAT.format(kind=kind)
    if kind == "json_schema":
        text += _SCHEMA.format(schema=_compact(response_format["json_schema"]["schema"]))
    yield from _option("response-format", text)


def turn_header() -> Iterator[Piece]:
    """The opening of an assistant turn up to where the model takes over: inside `think`."""
    yield from open_tag("message", role="assistant")
    yield from open_tag("think")


def message_pieces(message: Message) -> Iterator[Piece]:
    """A whole message in canonical form."""
    if message.role == "assistant":
        yield from turn_header()
        yield from turn_body(message)
        return
    if message.role == "tool":
        header = open_tag("message", role="tool", tool=message.name, index=str(call_index(message)))
    elif message.name:
        header = open_tag("message", role=message.role, name=message.name)
    else:
        header = open_tag("message", role=message.role)
    yield from (*header, message.content, *_close_message())


def turn_body(message: Message) -> Iterator[Piece]:
    """What the model itself writes after `turn_header`."""
    yield from (message.reasoning, *close_tag("think"))
    yield from (*open_tag("response"), message.content, *close_tag("response"))
    if message.tool_calls:
        yield from open_tag("tools")
        for index, call in enumerate(message.tool_calls, start=1):
            yield from _call(call, index)
        yield from close_tag("tools")
    yield from _close_message()


def _call(call: ToolCall, index: int) -> Iterator[Piece]:
    yield from open_tag("call", tool=call.name, index=str(index))
    for key, value in call.arguments.items():
        yield from open_tag("argument", key=key, type=json_type(value))
        yield from (dump(value), *close_tag("argument"))
    yield from close_tag("call")


def _close_message() -> tuple[Piece, ...]:
    return (*close_tag("message"), Marker.END_OF_MSG)


def _option(kind: str, text: str) -> tuple[Piece, ...]:
    return (*open_tag("message", role="system", type=kind), text, *_close_message())


def _declaration(tool: Tool) -> dict[str, Json]:
    function: dict[str, Json] = {"name": tool.name}
    if tool.description:
        function["description"] = tool.description
    if tool.parameters:
        function["parameters"] = tool.parameters
    return {"type": "function", "function": function}


def _compact(value: Json) -> str:
    """JSON with sorted keys and no blanks: a declaration's text must not depend on the order a dict was built in."""
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"), sort_keys=True, default=dict)
