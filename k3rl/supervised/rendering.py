"""A finished conversation as one token list, the way an episode would have produced it."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from k3rl.chat import XtmlRenderer
from k3rl.types import Message, Tier, TokenLog, Tool


def render_chat(renderer: XtmlRenderer, messages: Sequence[Message], tools: Sequence[Tool], tier: Tier) -> TokenLog:
    """A finished conversation as one token list: assistant turns count as sampled, all else as given."""
    first = next(i for i, message in enumerate(messages) if message.role == "assistant")
    parts = [(renderer.prompt(messages[:first], tools, tier), False)]
    given: list[Message] = []
    for place, message in enumerate(messages[first:]):
        if message.role != "assistant":
            given.append(message)
            continue
        if place:
            parts.append((renderer.observation(given), False))
            given = []
        parts.append((renderer.assistant(message), True))
    return token_log(parts)


def token_log(parts: Sequence[tuple[Sequence[int], bool]]) -> TokenLog:
    """Token lists end to end, each given (False) or counted as sampled (True)."""
    tokens = np.array([token for part, _ in parts for token in part], dtype=np.int32)
    mask = np.array([sampled for part, sampled in parts for _ in part], dtype=bool)
    zeros = np.zeros(len(tokens), dtype=np.float32)
    versions = np.where(mask, 0, -1).astype(np.int32)
    return TokenLog(tokens=tokens, mask=mask, logprobs=zeros, entropies=zeros, versions=versions)
