"""What a formula must compute: its meaning as data, its spelling, its value by plain Python, and hidden inputs.

Ranges name their sheet: "plum!B2:B5". `value` is the judge's own arithmetic; the agent's formula is evaluated elsewhere
(inspect_jobs.py) on the inputs that `hidden` makes, and both must agree on all of them.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from typing import Any, TypeAlias

from k3rl.environments.office.sheet_jobs import cells
from k3rl.environments.pools import WORDS

Value: TypeAlias = str | int | float
Inputs: TypeAlias = dict[str, Value]
"""Values to put into cells before recalculating, by full reference."""

AGGREGATES: dict[str, Callable[[list[float]], float]] = {
    "SUM": sum,
    "MAX": max,
    "MIN": min,
    "AVERAGE": lambda numbers: sum(numbers) / len(numbers),
}
ARITHMETIC: dict[str, Callable[[float, float], float]] = {
    "+": lambda left, right: left + right,
    "-": lambda left, right: left - right,
    "*": lambda left, right: left * right,
}


@dataclass(frozen=True, kw_only=True, slots=True)
class Formula:
    """`Formula(op="SUMIF", args=("plum!A2:A5", "plum!B2:B5"), test=("=", "fig"))`.

    op is an aggregate (one range), an arithmetic sign (two cells), COUNTIF (one range and a test), SUMIF (tested range,
    summed range, test) or VLOOKUP (key cell, table, `column` from 1). A test is ("=", word) or (">", number).
    """

    op: str
    args: tuple[str, ...]
    test: tuple[str, Value] = ("", 0)
    column: int = 0

    def to_json(self) -> dict[str, Any]:
        """Plain data for a task's payload."""
        return asdict(self) | {"args": list(self.args), "test": list(self.test)}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Formula:
        """The inverse of `to_json`."""
        return cls(
            op=data["op"], args=tuple(data["args"]), test=(data["test"][0], data["test"][1]), column=data["column"]
        )


def spell(formula: Formula, home: str) -> str:
    """The formula as one would type it into sheet `home`; ranges of other sheets carry their name."""
    args = [
        reference.partition("!")[2] if cells.split(reference)[0] == home else reference for reference in formula.args
    ]
    sign, operand = formula.test
    test = f'"{operand}"' if sign == "=" else f'"{sign}{operand}"'
    if formula.op in ARITHMETIC:
        return f"={args[0]}{formula.op}{args[1]}"
    if formula.op == "COUNTIF":
        return f"=COUNTIF({args[0]},{test})"
    if formula.op == "SUMIF":
        return f"=SUMIF({args[0]},{test},{args[1]})"
    if formula.op == "VLOOKUP":
        return f"=VLOOKUP({args[0]},{args[1]},{formula.column},FALSE)"
    return f"={formula.op}({args[0]})"


def value(formula: Formula, at: Callable[[str], Value]) -> Value:
    """What the formula is worth where cell `r` holds `at(r)`."""
    if formula.op in AGGREGATES:
        return AGGREGATES[formula.op]([float(at(r)) for r in cells.expand(formula.args[0])])
    if formula.op in ARITHMETIC:
        return ARITHMETIC[formula.op](float(at(formula.args[0])), float(at(formula.args[1])))
    if formula.op == "VLOOKUP":
        key = at(formula.args[0])
        return next(at(row[formula.column - 1]) for row in _rows(formula.args[1]) if at(row[0]) == key)
    hits = [_passes(formula.test, at(r)) for r in cells.expand(formula.args[0])]
    if formula.op == "COUNTIF":
        return sum(hits)
    return sum(float(at(r)) for r, hit in zip(cells.expand(formula.args[1]), hits, strict=True) if hit)


def hidden(formula: Formula, rng: random.Random) -> list[Inputs]:
    """Input sets such that a formula over the wrong cells, or a constant, is wrong on at least one of them.

    Every input cell decides the result in some set: it holds the extreme, its test flips, or its row is the one found.
    """
    if formula.op in AGGREGATES:
        return _extremes(cells.expand(formula.args[0]), rng)
    if formula.op in ARITHMETIC:
        return [{r: rng.choice((-1, 1)) * rng.randint(101, 999) / 4 for r in formula.args} for _ in range(3)]
    if formula.op == "VLOOKUP":
        return _found_rows(formula, rng)
    return _flips(formula, rng)


def _extremes(references: list[str], rng: random.Random) -> list[Inputs]:
    """Set i has its maximum at cell i and its minimum at the one before; sets lie around, above and below zero."""
    sets = []
    for i in range(max(3, len(references))):
        level = (0, 2000, -2000)[i % 3]
        inputs: Inputs = {r: level + rng.randint(-400, 400) / 4 for r in references}
        inputs[references[i % len(references) - 1]] = level - rng.randint(101, 999)
        inputs[references[i % len(references)]] = level + rng.randint(101, 999)
        sets.append(inputs)
    return sets


def _found_rows(formula: Formula, rng: random.Random) -> list[Inputs]:
    """Set i looks for the key of row i; keys are shuffled words, everything else is a fresh number."""
    rows = _rows(formula.args[1])
    sets = []
    for i in range(len(rows)):
        words = rng.sample(WORDS, len(rows))
        inputs: Inputs = {row[0]: word for row, word in zip(rows, words, strict=True)}
        inputs |= {r: rng.randint(100, 9999) for row in rows for r in row[1:]}
        sets.append(inputs | {formula.args[0]: words[i]})
    return sets


def _flips(formula: Formula, rng: random.Random) -> list[Inputs]:
    """One random pattern of hits and misses, then the same with each tested cell flipped in turn."""
    tested = cells.expand(formula.args[0])
    pattern = [rng.random() < 0.5 for _ in tested]
    patterns = [pattern] + [[hit != (i == j) for j, hit in enumerate(pattern)] for i in range(len(tested))]
    sets = []
    for hits in patterns:
        inputs: Inputs = {r: _operand(formula.test, hit, rng) for r, hit in zip(tested, hits, strict=True)}
        if formula.op == "SUMIF":
            inputs |= {r: rng.randint(-400, 400) / 4 + 0.125 for r in cells.expand(formula.args[1])}
        sets.append(inputs)
    return sets


def _operand(test: tuple[str, Value], hit: bool, rng: random.Random) -> Value:
    """A cell value that passes the test or does not, near misses among the latter."""
    sign, operand = test
    if sign == ">":
        return float(operand) + (rng.choice((0.5, 1, 40)) if hit else -rng.choice((0, 0.5, 40)))
    if hit:
        return operand
    return rng.choice((f"{operand}s", rng.choice([w for w in WORDS if w != operand])))


def _passes(test: tuple[str, Value], held: Value) -> bool:
    sign, operand = test
    return held == operand if sign == "=" else not isinstance(held, str) and held > float(operand)


def _rows(table: str) -> list[list[str]]:
    """The references of a table, one list per row."""
    sheet, rest = cells.split(table)
    box = cells.area(rest)
    assert box is not None, table
    prefix = f"{sheet}!" if sheet else ""
    return [[f"{prefix}{cells.coordinate(r, c)}" for c in range(box[1], box[3] + 1)] for r in range(box[0], box[2] + 1)]
