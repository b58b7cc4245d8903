"""The turn that each slot is in, and when it ends: stop token, sampled tokens, context, thinking budget."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from k3rl.errors import UserError
from k3rl.inference.rules import CloseMatcher, TurnRules, TurnStop

_UNLIMITED = np.iinfo(np.int64).max


@dataclass(frozen=True, kw_only=True, slots=True)
class TurnRequest:
    """Tokens to append (mask 0), then sampling within `max_tokens` (sampled ones) and `thinking_budget` (tokens
    sampled inside think; None is no limit)."""

    given: NDArray[np.int32]
    max_tokens: int
    thinking_budget: int | None

    def __post_init__(self) -> None:
        if self.max_tokens < 1:
            raise UserError(f"max_tokens is {self.max_tokens}: a turn samples at least one token")
        if self.thinking_budget is not None and self.thinking_budget < 0:
            raise UserError(f"thinking_budget is {self.thinking_budget}: give 0 or more, or None for no limit")


class Turns:
    """State of the running turn by slot, arrays over slots; `running` rows are in a turn."""

    def __init__(self, slots: int, rules: TurnRules) -> None:
        self._rules = rules
        self._close = CloseMatcher(rules.close_thinking)
        self.running = np.zeros(slots, np.bool_)
        self.start = np.zeros(slots, np.int64)
        self._left = np.zeros(slots, np.int64)
        self._thinking_left = np.zeros(slots, np.int64)
        self._close_state = np.zeros(slots, np.int64)
        self._context = np.zeros(slots, np.int64)

    def begin(self, slot: int, request: TurnRequest, *, start: int, context: int) -> tuple[int, ...]:
        """Begin a turn whose own tokens start at index `start`; returns tokens to force at once (a budget of 0)."""
        self.running[slot] = True
        self.start[slot] = start
        self._left[slot] = request.max_tokens
        self._thinking_left[slot] = _UNLIMITED if request.thinking_budget is None else request.thinking_budget
        self._close_state[slot] = 0
        self._context[slot] = context
        return self._spend(slot) if request.thinking_budget == 0 else ()

    def advance(
        self, rows: NDArray[np.int64], tokens: NDArray[np.int64], lengths: NDArray[np.int64]
    ) -> tuple[dict[int, TurnStop], dict[int, tuple[int, ...]]]:
        """One sampled token [n] for each of `rows` [n], whose lists now have `lengths` [n] tokens.

        Returns the rows whose turn ended, and for other rows the tokens to force because the budget is spent.
        """
        was_thinking = self._close_state[rows] < self._close.length
        self._close_state[rows] = self._close.advance(self._close_state[rows], tokens)
        self._thinking_left[rows] -= was_thinking
        self._left[rows] -= 1
        stopped = tokens == self._rules.stop
        spent = self._left[rows] == 0
        full = lengths >= self._context[rows]
        ended = stopped | spent | full
        unthought = ~ended & (self._close_state[rows] < self._close.length) & (self._thinking_left[rows] <= 0)
        stops: dict[int, TurnStop] = {
            int(rows[i]): "stop" if stopped[i] else "length" if spent[i] else "context" for i in np.flatnonzero(ended)
        }
        self.running[rows[ended]] = False
        return stops, {int(slot): self._spend(int(slot)) for slot in rows[unthought]}

    def room(self, slot: int, length: int) -> int:
        """Tokens that still fit into the slot's context."""
        return int(self._context[slot]) - length

    def _spend(self, slot: int) -> tuple[int, ...]:
        """Close the think channel by force: what is left of its marker."""
        rest = self._close.marker[int(self._close_state[slot]) :]
        self._close_state[slot] = self._close.length
        return rest
