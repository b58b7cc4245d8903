"""Messages to the tokens a model reads and writes.

Prefix rule: `prompt(history + [turn, *replies]) == prompt(history) + assistant(turn) + observation(replies)`, so that
an episode is one token list that only grows. It holds without tool choice and response format, which stand at the end.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from k3rl.chat.markers import Marker
from k3rl.chat.messages import canonical, number_replies
from k3rl.chat.parser import TurnParser
from k3rl.chat.template import (
    ToolChoice,
    close_tag,
    message_pieces,
    preamble,
    request_options,
    turn_body,
    turn_header,
)
from k3rl.chat.tokenizer import Tokenizer
from k3rl.types import Json, Message, Tier, Tool


class XtmlRenderer:
    """K3's chat format over one tokenizer.

    Example, with markers by name: `assistant(Message(role="assistant", content="done"))` is
    `<|close|>think<|sep|><|open|>response<|sep|>done<|close|>response<|sep|><|close|>message<|sep|><|end_of_msg|>`.
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        self.tokenizer = tokenizer
        self.stop_token: int = tokenizer.id(Marker.END_OF_MSG)
        self.close_thinking: list[int] = tokenizer.encode_pieces(close_tag("think"))

    def prompt(
        self,
        messages: Sequence[Message],
        tools: Sequence[Tool],
        tier: Tier,
        *,
        tool_choice: ToolChoice = "auto",
        response_format: Mapping[str, Json] | None = None,
    ) -> list[int]:
        """Everything up to and including the opened `think` of the turn to be generated."""
        return self.tokenizer.encode_pieces(
            (
                *preamble(tools, tier),
                *_history(messages),
                *request_options(tool_choice, response_format),
                *turn_header(),
            )
        )

    def observation(self, messages: Sequence[Message]) -> list[int]:
        """What is given after an assistant turn: the replies, and the header of the next turn."""
        return self.tokenizer.encode_pieces((*_history(messages), *turn_header()))

    def assistant(self, message: Message) -> list[int]:
        """Exactly the tokens a policy would sample for this turn, the end marker included."""
        return self.tokenizer.encode_pieces(turn_body(canonical(message)))

    def parser(self) -> TurnParser:
        """A fresh parser for one sampled turn."""
        return TurnParser(self.tokenizer)

    def close_turn(self, tokens: Iterable[int]) -> list[int]:
        """The forced tokens that close a turn which was cut after `tokens`; none if it had ended."""
        parser = self.parser()
        parser.feed_many(tokens)
        return self.tokenizer.encode_pieces(parser.closing())


def _history(messages: Sequence[Message]) -> Iterable[Marker | str]:
    for message in number_replies(tuple(messages)):
        yield from message_pieces(canonical(message))
