"""The token lists of the sessions that hold a slot, as arrays over slots: one small vectorised pass per step.

Legend: B slots, T capacity (grows by doubling), M MoE layers, K experts per token, D sparse-attention layers,
S selected positions.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from k3rl.types import Routes, TokenLog

_START_CAPACITY = 256
# What a column holds beyond a row's length.
_FILL = {
    "tokens": 0,
    "mask": False,
    "logprobs": 0.0,
    "entropies": 0.0,
    "versions": -1,
    "experts": -1,
    "selected": -1,
}


@dataclass(frozen=True, kw_only=True, slots=True)
class Record:
    """One session's token list taken out of its row; arrays of length `length`, as in TokenLog (float64 here).

    The first `processed` tokens have been through the model; routes of the others are -1.
    """

    tokens: NDArray[np.int32]
    mask: NDArray[np.bool_]
    logprobs: NDArray[np.float64]
    entropies: NDArray[np.float64]
    versions: NDArray[np.int32]
    experts: NDArray[np.int16]
    selected: NDArray[np.int32]
    processed: int

    @property
    def length(self) -> int:
        return len(self.tokens)

    def log(self) -> TokenLog:
        """The record as the rest of k3rl knows it."""
        return TokenLog(
            tokens=self.tokens,
            mask=self.mask,
            logprobs=self.logprobs.astype(np.float32),
            entropies=self.entropies.astype(np.float32),
            versions=self.versions,
            routes=Routes(experts=self.experts, selected=self.selected),
        )


class Rows:
    """Token lists by slot. Columns: tokens int32, mask bool, logprobs and entropies float64, versions int32 [B, T];
    experts int16 [B, T, M, K], selected int32 [B, T, D, S]; length and processed int64 [B]."""

    def __init__(self, slots: int, max_context: int, experts: tuple[int, int], selected: tuple[int, int]) -> None:
        self._max_context = max_context
        capacity = min(_START_CAPACITY, max_context)
        self.tokens = np.zeros((slots, capacity), np.int32)
        self.mask = np.zeros((slots, capacity), np.bool_)
        self.logprobs = np.zeros((slots, capacity), np.float64)
        self.entropies = np.zeros((slots, capacity), np.float64)
        self.versions = np.full((slots, capacity), -1, np.int32)
        self.experts = np.full((slots, capacity, *experts), -1, np.int16)
        self.selected = np.full((slots, capacity, *selected), -1, np.int32)
        self.length = np.zeros(slots, np.int64)
        self.processed = np.zeros(slots, np.int64)

    def put(self, slot: int, record: Record) -> None:
        """Fill a row; `take` gives the same record back."""
        self._reserve(record.length)
        for name, fill in _FILL.items():
            column = getattr(self, name)
            column[slot, : record.length] = getattr(record, name)
            column[slot, record.length :] = fill
        self.length[slot], self.processed[slot] = record.length, record.processed

    def take(self, slot: int) -> Record:
        """A copy of a row."""
        length = int(self.length[slot])
        columns = {name: getattr(self, name)[slot, :length].copy() for name in _FILL}
        return Record(**columns, processed=int(self.processed[slot]))

    def give(self, slot: int, tokens: NDArray[np.int32]) -> None:
        """Append tokens that nobody sampled (mask 0)."""
        start, end = int(self.length[slot]), int(self.length[slot]) + len(tokens)
        self._reserve(end)
        self.tokens[slot, start:end] = tokens
        self.length[slot] = end

    def pending(self, rows: NDArray[np.int64], most: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Where the next unprocessed tokens of `rows` [n] stand, at most `most` of each: (row, column) int64 [N],
        tokens of a row side by side."""
        counts = np.minimum(self.length[rows] - self.processed[rows], most)
        ends = counts.cumsum()
        inside = np.arange(ends[-1] if len(ends) else 0) - np.repeat(ends - counts, counts)
        return np.repeat(rows, counts), np.repeat(self.processed[rows], counts) + inside

    def record(
        self,
        rows: NDArray[np.int64],
        columns: NDArray[np.int64],
        experts: NDArray[np.int64],
        selected: NDArray[np.int64],
    ) -> None:
        """Note that the tokens at (row, column) [N] were processed, with their routes [N, M, K] and [N, D, S]."""
        self.experts[rows, columns] = experts
        self.selected[rows, columns] = selected
        self.processed[rows] = columns + 1  # ascending within a row: the last one stays

    def append(
        self,
        rows: NDArray[np.int64],
        tokens: NDArray[np.int64],
        logprobs: NDArray[np.float64],
        entropies: NDArray[np.float64],
        version: int,
    ) -> None:
        """Append one sampled token (mask 1) to each of `rows` [n]."""
        at = self.length[rows]
        self._reserve(int(at.max()) + 1)
        self.tokens[rows, at] = tokens
        self.mask[rows, at] = True
        self.logprobs[rows, at] = logprobs
        self.entropies[rows, at] = entropies
        self.versions[rows, at] = version
        self.length[rows] = at + 1

    def _reserve(self, needed: int) -> None:
        capacity = self.tokens.shape[1]
        if needed <= capacity:
            return
        while capacity < needed:
            capacity = min(2 * capacity, self._max_context)
        for name, fill in _FILL.items():
            old = getattr(self, name)
            grown = np.full((old.shape[0], capacity, *old.shape[2:]), fill, old.dtype)
            grown[:, : old.shape[1]] = old
            setattr(self, name, grown)
