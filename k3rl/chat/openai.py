"""OpenAI-style chat requests, as clients send them, to messages, tools and tier."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from k3rl.chat.messages import call_index, canonical
from k3rl.chat.template import ToolChoice
from k3rl.errors import UserError
from k3rl.types import Json, Message, Role, Tier, Tool, ToolCall

_ROLES: Mapping[str, Role] = {
    "system": "system",
    "developer": "system",
    "user": "user",
    "assistant": "assistant",
    "tool": "tool",
}


@dataclass(frozen=True, kw_only=True, slots=True)
class ChatRequest:
    """What `XtmlRenderer.prompt` takes. Messages are canonical, one assistant message per turn."""

    messages: tuple[Message, ...]
    tools: tuple[Tool, ...]
    tier: Tier
    tool_choice: ToolChoice = "auto"
    response_format: Mapping[str, Json] | None = None


def from_openai(request: Mapping[str, Json]) -> ChatRequest:
    """Read `messages`, `tools`, `reasoning_effort` or `thinking_budget`, `tool_choice`, `response_format`.

    Consecutive assistant messages become one turn; tool replies are matched to its calls by id (by place without one)
    and put into the calls' order. Other keys (model, temperature, ...) are the server's business. Raises UserError.
    """
    messages: list[Message] = []
    ids: list[str] = []  # of the calls of the latest assistant turn, as the client named them
    for position, raw in enumerate(_list(request, "messages")):
        where = f"messages[{position}]"
        message, call_ids = _message(raw, where)
        if message.role == "assistant" and messages and messages[-1].role == "assistant":
            messages[-1] = _merged(messages[-1], message)
            ids += call_ids
        elif message.role == "assistant":
            messages.append(message)
            ids = call_ids
        elif message.role == "tool":
            _insert_reply(messages, ids, message, where)
        else:
            messages.append(canonical(message))
    return ChatRequest(
        messages=tuple(canonical(m) for m in messages),
        tools=tuple(_tool(raw, f"tools[{i}]") for i, raw in enumerate(_list(request, "tools"))),
        tier=_tier(request),
        tool_choice=_tool_choice(request.get("tool_choice")),
        response_format=_response_format(request.get("response_format")),
    )


def _list(request: Mapping[str, Json], key: str) -> Sequence[Json]:
    value = request.get(key)
    if value is None:
        return ()
    if isinstance(value, str) or not isinstance(value, Sequence):
        raise UserError(f"{key} must be a list, not {type(value).__name__}")
    return value


def _object(value: Json, where: str) -> Mapping[str, Json]:
    if not isinstance(value, Mapping):
        raise UserError(f"{where} must be an object, not {type(value).__name__}")
    return value


def _message(raw: Json, where: str) -> tuple[Message, list[str]]:
    fields = _object(raw, where)
    named = fields.get("role")
    role = _ROLES.get(named) if isinstance(named, str) else None
    if role is None:
        raise UserError(f"{where}.role is {named!r}; it must be one of {', '.join(_ROLES)}")
    reasoning = fields.get("reasoning_content") or fields.get("reasoning") or ""
    calls = [_call(call, f"{where}.tool_calls[{i}]") for i, call in enumerate(_list(fields, "tool_calls"))]
    message = Message(
        role=role,
        content=_text(fields.get("content"), f"{where}.content"),
        reasoning=_text(reasoning, f"{where}.reasoning_content"),
        tool_calls=tuple(calls),
        name=str(fields.get("name") or ""),
        tool_call_id=str(fields.get("tool_call_id") or ""),
    )
    return message, [call.id for call in calls]


def _text(content: Json, where: str) -> str:
    """A text, null, or a list of text parts."""
    if content is None:
        return ""
    if isinstance(content, str):
        return content
    if not isinstance(content, Sequence):
        raise UserError(f"{where} must be text, null or a list of parts, not {type(content).__name__}")
    texts: list[str] = []
    for i, part in enumerate(content):
        kind = _object(part, f"{where}[{i}]").get("type")
        if kind != "text" or not isinstance(part.get("text"), str):
            raise UserError(f"{where}[{i}] has the type {kind!r}; only text parts are supported")
        texts.append(part["text"])
    return "".join(texts)


def _call(raw: Json, where: str) -> ToolCall:
    fields = _object(raw, where)
    function = _object(fields.get("function", fields), f"{where}.function")
    name = function.get("name")
    if not isinstance(name, str) or not name:
        raise UserError(f"{where}.function.name is missing")
    arguments = function.get("arguments") or {}
    if isinstance(arguments, str):
        try:
            arguments = json.loads(arguments)
        except ValueError as error:
            raise UserError(f"{where}.function.arguments of {name!r} is not JSON: {error}") from None
    return ToolCall(
        id=str(fields.get("id") or ""), name=name, arguments=_object(arguments, f"{where}.function.arguments")
    )


def _merged(first: Message, second: Message) -> Message:
    """Two assistant messages of one turn as one; texts that both have are joined by a newline."""
    return replace(
        first,
        content="\n".join(filter(None, (first.content, second.content))),
        reasoning="\n".join(filter(None, (first.reasoning, second.reasoning))),
        tool_calls=first.tool_calls + second.tool_calls,
    )


def _insert_reply(messages: list[Message], ids: list[str], reply: Message, where: str) -> None:
    """Give a tool reply its call's tool and index, and move it before replies to later calls."""
    start = len(messages)
    while start and messages[start - 1].role == "tool":
        start -= 1
    calls = messages[start - 1].tool_calls if start else ()
    asked = reply.tool_call_id
    place = ids.index(asked) if asked and asked in ids else len(messages) - start
    if place >= len(calls) or (asked and asked not in ids):
        raise UserError(f"{where} answers {asked or 'no call'!r}, which the assistant turn before lacks")
    name = calls[place].name
    reply = replace(reply, name=name, tool_call_id=f"{name}:{place + 1}")
    later = (i for i in range(start, len(messages)) if (call_index(messages[i]) or 0) > place + 1)
    messages.insert(next(later, len(messages)), canonical(reply))


def _tool(raw: Json, where: str) -> Tool:
    fields = _object(raw, where)
    function = _object(fields.get("function", fields), f"{where}.function")
    name = function.get("name")
    if not isinstance(name, str) or not name:
        raise UserError(f"{where}.function.name is missing")
    return Tool(
        name=name,
        description=_text(function.get("description"), f"{where}.function.description"),
        parameters=_object(function.get("parameters") or {}, f"{where}.function.parameters"),
    )


def _tier(request: Mapping[str, Json]) -> Tier:
    given = {key: request[key] for key in ("reasoning_effort", "thinking_budget") if request.get(key) is not None}
    for key, value in given.items():
        if value not in tuple(Tier):
            raise UserError(f"{key} is {value!r}; it must be one of {', '.join(Tier)}")
    if len(set(given.values())) > 1:
        raise UserError(f"{' and '.join(f'{k}={v!r}' for k, v in given.items())} contradict each other; give one")
    return Tier(next(iter(given.values()), Tier.MAX))


def _tool_choice(value: Json) -> ToolChoice:
    if value is None or value == "auto":
        return "auto"
    if value == "required":
        return "required"
    if value == "none":
        return "none"
    raise UserError(f"tool_choice is {value!r}; it must be 'auto', 'required' or 'none'")


def _response_format(value: Json) -> Mapping[str, Json] | None:
    if value is None:
        return None
    fields = _object(value, "response_format")
    kind = fields.get("type")
    if kind == "text":
        return None
    if kind == "json_schema":
        _object(_object(fields.get("json_schema"), "response_format.json_schema").get("schema"), "the schema")
    elif kind != "json_object":
        raise UserError(f"response_format.type is {kind!r}; it must be 'text', 'json_object' or 'json_schema'")
    return fields
