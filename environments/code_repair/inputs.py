"""Arguments for the generated functions: drawn so that the borders of a rule are hit, not only its inside."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from k3rl.environments.pools import WORDS
from k3rl.types import Json


@dataclass(frozen=True, kw_only=True, slots=True)
class Draw:
    """What a generator may use: the random source, the function's own numbers and words, earlier arguments."""

    rng: random.Random
    numbers: tuple[int, ...]
    words: tuple[str, ...]
    earlier: list[Json] = field(default_factory=list)

    def some(self, low: int, high: int) -> list[str]:
        return self.rng.sample(WORDS, self.rng.randint(low, high))


def _near(draw: Draw) -> int:
    chance = draw.rng.random()
    if chance < 0.5:
        return max(0, draw.rng.choice(draw.numbers) + draw.rng.randint(-1, 1))
    return draw.rng.randint(0, draw.numbers[0] if chance < 0.75 else 40)


def _peer(draw: Draw) -> int:
    return max(0, int(draw.earlier[0]) + draw.rng.choice((-1, 0, 0, 1, -9, 9)))


def _repeats(draw: Draw) -> list[str]:
    kinds = draw.some(2, 2)
    return kinds + [draw.rng.choice(kinds) for _ in range(3)]


def _key(draw: Draw) -> str:
    known: list[str] = list(draw.earlier[0])
    return draw.rng.choice([*known, draw.rng.choice(WORDS)])


def _span(draw: Draw) -> list[int]:
    low = draw.rng.randint(0, 9)
    return [low, low + draw.rng.randint(1, 9)]


INPUTS: Mapping[str, Callable[[Draw], Json]] = {
    "int": lambda d: d.rng.randint(0, 40),
    "ints": lambda d: d.rng.sample(range(40), d.rng.randint(3, 4)),
    "near": _near,
    "nears": lambda d: [_near(d) for _ in range(4)],
    "peer": _peer,
    "word": lambda d: d.rng.choice(WORDS),
    "words": lambda d: d.some(3, 4),
    "queue": lambda d: d.some(1, 4),
    "repeats": _repeats,
    "member": lambda d: d.rng.choice(d.earlier[0]),
    "counts": lambda d: {word: d.rng.randint(2, 9) for word in d.some(2, 3)},
    "key": _key,
    "dashed": lambda d: "-".join(d.some(2, 2)),
    "dashes": lambda d: "-".join(d.some(3, 3)),
    "spaced": lambda d: f" {d.rng.choice(WORDS)} ",
    "assign": lambda d: f"{d.rng.choice(WORDS)}={d.rng.randint(0, 99)}",
    "option": lambda d: d.rng.choice(("{}", "-{}", "{}-", "-{}-")).format(d.rng.choice(WORDS)),
    "numeral": lambda d: d.rng.choice((d.rng.choice(WORDS), str(d.rng.randint(0, 99)))),
    "state": lambda d: d.rng.choice((*d.words, *d.words, d.rng.choice(WORDS))),
    "span": _span,
    "grid": lambda d: [[d.rng.randint(0, 9) for _ in range(2)] for _ in range(d.rng.randint(2, 3))],
}
"""Generator of one argument by name; every value is plain JSON."""


def arguments(inputs: str, draw: Draw) -> list[Json]:
    """One call's arguments for a shape's `inputs`, in order."""
    values: list[Json] = []
    for name in inputs.split():
        values.append(INPUTS[name](Draw(rng=draw.rng, numbers=draw.numbers, words=draw.words, earlier=values)))
    return values
