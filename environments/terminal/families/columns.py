"""Write a column of comma-separated rows to a file; at higher levels its place must be read from a header."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from k3rl.environments.terminal.puzzle import Content, Draw, Puzzle, text

COLUMNS = 3


@dataclass(frozen=True, kw_only=True, slots=True)
class Sheet:
    """Rows of words and numbers; `head` may be empty."""

    head: Sequence[str]
    rows: Sequence[Sequence[str]]

    @property
    def text(self) -> str:
        return text([",".join(row) for row in [self.head, *self.rows] if row])

    def column(self, number: int) -> list[str]:
        """One column, counted from 1, with its head."""
        return [row[number - 1] for row in [self.head, *self.rows] if row]


def sheet(draw: Draw, rows: int = 4, head: Sequence[str] = ()) -> Sheet:
    """Two columns of words with one of numbers between them."""
    return Sheet(head=head, rows=[[draw.word(), str(draw.number()), draw.word()] for _ in range(rows)])


def columns(draw: Draw, level: int) -> Puzzle:
    """1 column by number; 2 sorted; 3 by name; 4 the file is known by the column's name; 5 only rows with a word."""
    target, number = draw.word(), draw.rng.randint(1, COLUMNS)
    if level <= 2:
        name = draw.word()
        made = sheet(draw)
        before: dict[str, Content] = {name: made.text, **draw.others()}
        result = made.column(number) if level == 1 else sorted(made.column(number))
        cut = f"cut -d, -f{number} {name}"
        command = f"{cut} > {target}" if level == 1 else f"{cut} | sort > {target}"
        order = "" if level == 1 else ", sorted,"
        return Puzzle(
            prompt=draw.say(
                f"Write column {number} of {name}{order} to {target}.",
                f"Put column {number} of the comma-separated file {name}{order} into {target}.",
            ),
            before=draw.shuffled(before),
            after={**before, target: text(result)},
            solutions=[[command], [command.replace("-d, ", "-d ',' ")]],
        )
    return _named(draw, level, target, number)


def _named(draw: Draw, level: int, target: str, number: int) -> Puzzle:
    names = draw.words(1 if level == 3 else 3)
    before: dict[str, Content] = {name: sheet(draw, 3, draw.words(COLUMNS)).text for name in names}
    head = draw.words(COLUMNS)
    made = sheet(draw, 3, head)
    name, column = draw.rng.choice(names), head[number - 1]
    cut, result = f"cut -d, -f{number} {name} > {target}", made.column(number)
    before[name] = made.text
    find, look = f"grep -rl {column}", f"head -n 1 {name}"
    if level == 3:
        prompt = f"Write the column {column} of {name}, with its header, to {target}."
        solutions = [[look, cut], [f"cat {name}", cut]]
    elif level == 4:
        prompt = f"One file has a column {column}. Write this column, with its header, to {target}."
        solutions = [[find, look, cut], [f"grep -r {column}", cut]]
    else:
        word = made.rows[0][2 if number < COLUMNS else 0]
        before[draw.word()] = text([f"{word},{draw.number()}"])
        prompt = f"One file has a column {column}. Write what it holds in the row with {word} to {target}."
        cut, result = f"grep {word} {name} | cut -d, -f{number} > {target}", [made.rows[0][number - 1]]
        solutions = [[find, look, cut], [f"grep -r {column}", cut]]
    return Puzzle(
        prompt=prompt, before=draw.shuffled(before), after={**before, target: text(result)}, solutions=solutions
    )
