"""Seeded small tables of pool words and numbers, and the way from a row's and a column's name to a cell."""

from __future__ import annotations

import random
from dataclasses import dataclass

from k3rl.environments.office.formula import Value
from k3rl.environments.office.sheet_jobs import cells
from k3rl.environments.pools import NUMBERS, WORDS


@dataclass(frozen=True, kw_only=True, slots=True)
class Table:
    """A header row and data rows from A1 on; None is an empty cell.

    `Table(sheet="plum", rows=[["fig", "oak"], ["jade", 7]])`: column oak of row jade is 7.
    """

    sheet: str
    rows: list[list[Value | None]]

    @property
    def heads(self) -> list[str]:
        """The names of the columns."""
        return [str(head) for head in self.rows[0]]

    @property
    def names(self) -> list[str]:
        """The first column without its header: the names of the rows."""
        return [str(row[0]) for row in self.rows[1:]]

    def contents(self) -> dict[str, Value]:
        """Cells that hold something, by coordinate."""
        return {
            cells.coordinate(r, c): value
            for r, row in enumerate(self.rows, 1)
            for c, value in enumerate(row, 1)
            if value is not None
        }

    def at(self, row: int, column: int) -> str:
        """Full reference of data row `row` (from 0) and column `column` (from 0): (0, 1) is "plum!B2"."""
        return f"{self.sheet}!{cells.coordinate(row + 2, column + 1)}"

    def span(self, column: int, *, rows: int = 0) -> str:
        """Full reference of the first `rows` data rows (0: all) of a column: "plum!B2:B5"."""
        last = (rows or len(self.rows) - 1) + 1
        return f"{self.at(0, column)}:{cells.coordinate(last, column + 1)}"

    def value(self, row: int, column: int) -> Value:
        """What data row `row` holds in `column`; it must hold something."""
        held = self.rows[row + 1][column]
        assert held is not None, (row, column)
        return held


class Draw:
    """Draws that never repeat a word or a number within one task, so that every name means one thing."""

    def __init__(self, rng: random.Random) -> None:
        self.rng = rng
        self._words = rng.sample(WORDS, len(WORDS))
        self._numbers = rng.sample(NUMBERS[1:], len(NUMBERS) - 1)

    def word(self) -> str:
        """A word not drawn before."""
        return self._words.pop()

    def words(self, count: int) -> list[str]:
        """Several of them."""
        return [self.word() for _ in range(count)]

    def number(self) -> int:
        """A number from 1 to 99 not drawn before."""
        return self._numbers.pop()

    def value(self, kind: str = "?") -> Value:
        """By kind: "w" a word, "n" a number, "?" either."""
        if kind == "?":
            kind = self.rng.choice("wn")
        return self.word() if kind == "w" else self.number()

    def pick(self, count: int, start: int = 0) -> int:
        """An index from `start` to `count` - 1."""
        return self.rng.randrange(start, count)

    def two(self, count: int) -> tuple[int, int]:
        """Two different indices below `count`."""
        first, second = self.rng.sample(range(count), 2)
        return first, second

    def table(self, kinds: str, rows: int) -> Table:
        """Names in the first column, then one column per letter of `kinds`: w words, n numbers, ? either, - empty."""
        chosen = [self.rng.choice("wn") if kind == "?" else kind for kind in kinds]
        body: list[list[Value | None]] = [
            [self.word(), *(None if kind == "-" else self.value(kind) for kind in chosen)] for _ in range(rows)
        ]
        heads: list[Value | None] = [*self.words(len(kinds) + 1)]
        return Table(sheet=self.word(), rows=[heads, *body])

    def say(self, *phrasings: str, **names: Value) -> str:
        """One of the phrasings, filled in."""
        return self.rng.choice(phrasings).format(**names)
