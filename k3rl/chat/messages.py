"""The canonical form of a message: what is left of it after rendering and parsing back."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import replace

from k3rl.chat.tokenizer import well_formed
from k3rl.errors import UserError
from k3rl.types import Json, Message, ToolCall

MAX_DEPTH = 64
"""Deepest nesting of an argument's value; beyond it Python's own JSON code may run out of stack."""


def canonical(message: Message) -> Message:
    """`message` as the format can carry it; idempotent. Raises UserError for arguments that are not JSON.

    Texts are valid Unicode, blank reasoning is empty, tool calls are numbered from 1 (`shell:1`), a tool reply's id is
    its tool and index, and fields that a role does not use are empty.
    """
    text = well_formed(message.content)
    if message.role == "assistant":
        calls = tuple(_canonical_call(call, index) for index, call in enumerate(message.tool_calls, start=1))
        reasoning = well_formed(message.reasoning)
        return Message(
            role="assistant", content=text, reasoning=reasoning if reasoning.strip() else "", tool_calls=calls
        )
    name = well_formed(message.name)
    if message.role == "tool":
        index = call_index(message)
        return Message(role="tool", content=text, name=name, tool_call_id=f"{name}:{1 if index is None else index}")
    return Message(role=message.role, content=text, name=name)


def number_replies(messages: tuple[Message, ...]) -> tuple[Message, ...]:
    """Tool messages whose id names no index (ids of another system) get their place among their neighbours."""
    numbered: list[Message] = []
    place = 0
    for message in messages:
        place = place + 1 if message.role == "tool" else 0
        if message.role == "tool" and call_index(message) is None:
            message = replace(message, tool_call_id=f"{message.name}:{place}")
        numbered.append(message)
    return tuple(numbered)


def call_index(message: Message) -> int | None:
    """The index in a tool message's id (`shell:2` has 2), or None."""
    digits = message.tool_call_id.rpartition(":")[2]
    return int(digits) if digits.isascii() and digits.isdecimal() and len(digits) < 10 else None


def _canonical_call(call: ToolCall, index: int) -> ToolCall:
    name = well_formed(call.name)
    return ToolCall(id=f"{name}:{index}", name=name, arguments=canonical_arguments(name, call.arguments))


def canonical_arguments(tool: str, arguments: Mapping[str, Json]) -> dict[str, Json]:
    """Arguments as plain JSON values with text keys."""
    values: dict[str, Json] = {}
    for key, value in arguments.items():
        try:
            values[well_formed(str(key))] = canonical_value(value)
        except (TypeError, ValueError, RecursionError) as error:
            raise UserError(f"argument {key!r} of a call of {tool!r} is not a JSON value: {error}") from None
    return values


def canonical_value(value: Json) -> Json:
    """A JSON value after a round trip through its text. Raises ValueError or TypeError if it has none."""
    text = dump(value)
    return value if isinstance(value, str) and text == value else parse_value(text, json_type(value))


def dump(value: Json) -> str:
    """A value as an argument's body: strings raw, anything else as JSON."""
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, allow_nan=False)
    return well_formed(text)


def parse_value(text: str, kind: str) -> Json:
    """The value of an argument's body of the given type. Raises ValueError if the text is not such a value."""
    if kind == "string":
        return text
    try:
        value = json.loads(text, parse_constant=_refuse, parse_float=_finite)
    except RecursionError:
        raise ValueError("nested too deeply") from None
    if json_type(value) != kind:
        raise ValueError(f"{json_type(value)} found")
    if _depth(value) > MAX_DEPTH:
        raise ValueError("nested too deeply")
    # \ud800 escapes may have made text that no UTF-8 can carry
    return json.loads(well_formed(json.dumps(value, ensure_ascii=False)))


def json_type(value: Json) -> str:
    """The type name an argument tag carries: string, number, boolean, null, object or array."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "boolean"
    if isinstance(value, str):
        return "string"
    if isinstance(value, int | float):
        return "number"
    return "object" if isinstance(value, Mapping) else "array"


def _refuse(name: str) -> float:
    raise ValueError(f"{name} is not JSON")


def _finite(text: str) -> float:
    value = float(text)
    if math.isinf(value):
        raise ValueError(f"{text} is too large")
    return value


def _depth(value: Json) -> int:
    """Nesting of a value, without recursion."""
    depth, level = 0, [value]
    while level:
        depth += 1
        level = [
            child
            for item in level
            if isinstance(item, dict | list)
            for child in (item.values() if isinstance(item, dict) else item)
        ]
    return depth
