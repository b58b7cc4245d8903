"""One sampled assistant turn, token by token, back to a message.

Only marker tokens make structure; bytes that spell a marker are text. Nothing a model samples raises: what is wrong
becomes a list of problems in words for the agent, and a turn with any problem has no tool calls to run.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, field

from k3rl.chat.markers import Marker
from k3rl.chat.messages import parse_value
from k3rl.chat.template import close_tag, open_tag, unescape
from k3rl.chat.tokenizer import Piece, Tokenizer
from k3rl.types import Json, Message, ToolCall

_CHANNELS = ("think", "response", "tools")  # in this order, each once
_CHILDREN = {"message": _CHANNELS, "tools": ("call",), "call": ("argument", "json")}
_ATTRIBUTES = {"call": ("tool", "index"), "argument": ("key", "type"), "json": ("type",)}
_TYPES = ("string", "number", "boolean", "null", "object", "array")
_HEADER = re.compile(r'([a-z_]+)((?: [a-z_]+="[^"]*")*)')
_ATTRIBUTE = re.compile(r' ([a-z_]+)="([^"]*)"')
MAX_PROBLEMS = 3
"""Problems told about one turn; the first is the cause, the rest tend to follow from it."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ParsedTurn:
    """`message` is canonical; its `tool_calls` are empty if there are `problems`. `thinking_tokens` were sampled
    inside the think channel, tags not counted."""

    message: Message
    problems: tuple[str, ...]
    thinking_tokens: int


def problem_message(problems: tuple[str, ...]) -> Message:
    """The observation that tells an agent what was wrong with its turn."""
    return Message(role="tool", name="error", tool_call_id="error:1", content="error: " + "; ".join(problems))


@dataclass(slots=True)
class _Element:
    """An open tag: its attributes, the bytes right inside it, and a call's arguments so far."""

    tag: str
    attributes: dict[str, str] = field(default_factory=dict)
    text: bytearray = field(default_factory=bytearray)
    arguments: dict[str, Json] = field(default_factory=dict)


@dataclass(slots=True)
class _Header:
    """A tag being written, after its first marker and before `sep`."""

    closing: bool
    text: bytearray = field(default_factory=bytearray)


class TurnParser:
    """Feed it the tokens sampled after an opened `think`. `done` is true after the end marker."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self.done = False
        self._tokenizer = tokenizer
        self._open = [_Element("message"), _Element("think")]
        self._header: _Header | None = None
        self._seen = ["think"]  # channels opened so far
        self._texts: dict[str, str] = {}  # closed channels
        self._calls: list[ToolCall] = []
        self._problems: list[str] = []
        self._lost = False  # the structure broke: nothing more is read but the end marker
        self._thinking_tokens = 0

    @property
    def thinking(self) -> bool:
        """Whether the next text token would be thinking: inside `think` and not within a tag."""
        return not self._lost and not self.done and self._header is None and self._top == "think"

    def feed_many(self, tokens: Iterable[int]) -> None:
        """Feed tokens in order."""
        for token in tokens:
            self.feed(token)

    def feed(self, token: int) -> None:
        """Feed one token id, whatever it is."""
        marker = self._tokenizer.marker(token)
        if self.done:
            self._problem("text after the end of the message")
        elif marker is Marker.END_OF_MSG:
            self._end()
        elif self._lost:
            return
        elif marker is Marker.OPEN or marker is Marker.CLOSE:
            if self._header is not None:
                self._lose("a tag was started inside another tag")
            else:
                self._header = _Header(closing=marker is Marker.CLOSE)
        elif marker is Marker.SEP:
            self._end_header()
        else:
            self._text(self._tokenizer.token_bytes(token))

    def result(self) -> ParsedTurn:
        """The turn as far as it was fed. A turn without its end marker has the problem that it was cut off."""
        problems = list(self._problems)
        if not self.done:
            problems.append("the turn was cut off before its end")
        texts = dict(self._texts)
        for element in self._open:
            if element.tag in ("think", "response"):
                texts[element.tag] = element.text.decode("utf-8", "replace")
        reasoning = texts.get("think", "")
        message = Message(
            role="assistant",
            reasoning=reasoning if reasoning.strip() else "",
            content=texts.get("response", ""),
            tool_calls=() if problems else tuple(self._calls),
        )
        return ParsedTurn(
            message=message, problems=tuple(problems[:MAX_PROBLEMS]), thinking_tokens=self._thinking_tokens
        )

    def closing(self) -> tuple[Piece, ...]:
        """The pieces that would close the turn here: a tag under way is ended, then every open one closed."""
        if self.done:
            return ()
        pieces: list[Piece] = []
        tags = [element.tag for element in self._open]
        if self._header is not None:
            written = self._header.text.decode("utf-8", "replace")
            if not self._header.closing:
                pieces += (Marker.SEP, *close_tag(written.partition(" ")[0]))
            elif tags and tags[-1].startswith(written):
                pieces += (tags.pop()[len(written) :], Marker.SEP)
            else:
                pieces.append(Marker.SEP)
        for tag in reversed(tags):
            if tag == "message" and self._seen == ["think"]:
                pieces += (*open_tag("response"), *close_tag("response"))
            pieces += close_tag(tag)
        return (*pieces, Marker.END_OF_MSG)

    @property
    def _top(self) -> str:
        return self._open[-1].tag if self._open else ""

    def _problem(self, text: str) -> None:
        if text not in self._problems:
            self._problems.append(text)

    def _lose(self, text: str) -> None:
        self._problem(text)
        self._lost = True

    def _end(self) -> None:
        self.done = True
        if self._open and not self._lost:
            self._problem(f"the message ended before {self._top} was closed")

    def _text(self, data: bytes | None) -> None:
        if data is None:
            self._lose("a special token stands inside the message")
        elif self._header is not None:
            self._header.text += data
        elif not self._open:
            self._lose("text after the message was closed")
        else:
            self._thinking_tokens += self._top == "think"
            self._open[-1].text += data

    def _end_header(self) -> None:
        header, self._header = self._header, None
        if header is None:
            self._lose("a tag was ended that was never started")
            return
        match = _HEADER.fullmatch(header.text.decode("utf-8", "replace"))
        if match is None:
            self._lose("a tag could not be read")
        elif header.closing:
            self._close(match[0])
        else:
            pairs = _ATTRIBUTE.findall(match[2])
            attributes = {key: unescape(value) for key, value in pairs}
            if tuple(key for key, _ in pairs) != _ATTRIBUTES.get(match[1], ()):
                self._problem(f"{match[1]} has the wrong attributes")
            self._start(_Element(match[1], attributes))

    def _start(self, element: _Element) -> None:
        tag, parent = element.tag, self._top
        if tag not in _CHILDREN.get(parent, ()):
            self._lose(f"{tag} cannot stand inside {parent}" if parent else f"{tag} after the message was closed")
            return
        if parent == "message":
            if _CHANNELS.index(tag) <= _CHANNELS.index(self._seen[-1]):
                self._lose(f"{tag} cannot follow {self._seen[-1]}")
                return
            self._seen.append(tag)
        self._open.append(element)

    def _close(self, tag: str) -> None:
        if tag != self._top:
            self._lose(f"{tag} was closed inside {self._top}" if self._top else f"{tag} was closed twice")
            return
        element = self._open.pop()
        text = self._decode(element)
        if tag in _CHILDREN and text.strip():
            self._problem(f"text inside {tag} but outside its parts")
        if tag in ("think", "response"):
            self._texts[tag] = text
        elif tag in ("argument", "json"):
            self._argument(element, text)
        elif tag == "call":
            self._call(element)
        elif tag == "tools" and not self._calls:
            self._problem("tools has no call")
        elif tag == "message" and len(self._seen) == 1:
            self._problem("there is neither a response nor a call")

    def _decode(self, element: _Element) -> str:
        try:
            return element.text.decode("utf-8")
        except UnicodeDecodeError:
            self._problem(f"the text of {element.tag} is not valid UTF-8")
            return element.text.decode("utf-8", "replace")

    def _argument(self, element: _Element, text: str) -> None:
        call = self._open[-1]
        key = element.attributes.get("key", "")
        kind = element.attributes.get("type", "")
        if kind not in _TYPES:
            self._problem(f"{key or element.tag} has the unknown type {kind!r}")
            return
        if element.tag == "json" and kind != "object":
            self._problem("json must have the type 'object'")
            return
        try:
            value = parse_value(text, kind)
        except ValueError:
            self._problem(f"{key or element.tag} is not a valid {kind}")
            return
        for name, item in value.items() if element.tag == "json" else ((key, value),):
            if name in call.arguments:
                self._problem(f"{name} was given twice")
            call.arguments[name] = item

    def _call(self, element: _Element) -> None:
        name = element.attributes.get("tool", "")
        index = len(self._calls) + 1
        if not name:
            self._problem("a call names no tool")
        if element.attributes.get("index") != str(index):
            self._problem(f"the call of {name} must have the index {index}")
        self._calls.append(ToolCall(id=f"{name}:{index}", name=name, arguments=element.arguments))
