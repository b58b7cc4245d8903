"""What a request may ask for, how a turn ends, and the marker that closes the think channel."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from k3rl.errors import ConfigError

TurnStop = Literal["stop", "length", "context"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Sampling:
    """`Sampling(temperature=0.8)`; 0 is greedy (lowest id among equals)."""

    temperature: float = 1.0

    def __post_init__(self) -> None:
        if not (self.temperature == 0 or 1e-3 <= self.temperature < math.inf):
            raise ConfigError(
                f"temperature is {self.temperature}: give 0 (greedy) or a finite number of at least 0.001"
            )


@dataclass(frozen=True, kw_only=True, slots=True)
class TurnRules:
    """How this model's turns end and how its think channel closes.

    stop: the token that ends a turn. close_thinking: the tokens that close the think channel, which every turn begins
    in (the header opens it). `TurnRules(stop=r.stop_token, close_thinking=tuple(r.close_thinking))`.
    """

    stop: int
    close_thinking: tuple[int, ...]

    def __post_init__(self) -> None:
        if not self.close_thinking:
            raise ConfigError("close_thinking is empty: give the tokens that close the think channel")
        if self.stop in self.close_thinking:
            raise ConfigError(f"stop token {self.stop} is part of close_thinking {self.close_thinking}: give another")


@dataclass(frozen=True, kw_only=True, slots=True)
class SampledTurn:
    """What one turn added after the given tokens: `tokens` begin at index `start` of the session's token list and hold
    the sampled tokens (the stop token too) and a forced close of the think channel.

    stop: "stop" (stop token sampled), "length" (max_tokens sampled) or "context" (token list full; with no tokens when
    the given tokens left no room: then they were not appended either).
    """

    start: int
    tokens: tuple[int, ...]
    stop: TurnStop


class CloseMatcher:
    """Follows the close-think marker through sampled tokens, many rows at once.

    A row's state is how many tokens of the marker its latest tokens spell (the longest such prefix, as in
    Knuth-Morris-Pratt); `length` means closed. When a budget is spent in state k, the tokens still to be forced are
    `marker[k:]`: a marker that the policy has begun is completed, not begun again.
    """

    def __init__(self, marker: tuple[int, ...]) -> None:
        self.marker = marker
        self.length = len(marker)
        alphabet = sorted(set(marker))
        self._alphabet = np.array(alphabet, dtype=np.int64)
        self._table = np.zeros((self.length + 1, len(alphabet) + 1), dtype=np.int64)  # last column: any other token
        for state in range(self.length):
            for column, token in enumerate(alphabet):
                seen = (*marker[:state], token)
                self._table[state, column] = max(k for k in range(len(seen) + 1) if seen[len(seen) - k :] == marker[:k])
        self._table[self.length] = self.length

    def advance(self, states: NDArray[np.int64], tokens: NDArray[np.int64]) -> NDArray[np.int64]:
        """States [n] after one more token [n] each; a closed row stays closed."""
        column = np.searchsorted(self._alphabet, tokens).clip(max=len(self._alphabet) - 1)
        column = np.where(self._alphabet[column] == tokens, column, len(self._alphabet))
        advanced: NDArray[np.int64] = self._table[states, column]
        return advanced
