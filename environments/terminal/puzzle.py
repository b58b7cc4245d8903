"""One terminal task as data: the prompt, the files before, the files after, and commands that lead there."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

from k3rl.environments.pools import NUMBERS, WORDS
from k3rl.types import Json

Content: TypeAlias = Json
"""A text; {"tar": {member: text}}; {"link": target}; and in what is expected {"json": value} or {"any": true}.
A path that ends in "/" is a folder that may be empty."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Rerun:
    """The grader runs `bash script` in a folder with these files, and it must print `output`."""

    script: str
    files: Mapping[str, str]
    output: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Puzzle:
    """`after` is the whole tree that must be left, `modes_after` the modes that count.

    solutions: ways to solve it, each a list of commands, one a turn. commit: see git_objects.Commit, for tasks whose
    work folder is a repository; then `after` is the work tree without `.git`.
    """

    prompt: str
    before: Mapping[str, Content]
    after: Mapping[str, Content]
    solutions: Sequence[Sequence[str]]
    modes: Mapping[str, int] = field(default_factory=dict)
    modes_after: Mapping[str, int] = field(default_factory=dict)
    reruns: Sequence[Rerun] = ()
    repository: Mapping[str, Json] | None = None
    commit: Mapping[str, Json] | None = None

    def payload(self) -> dict[str, Json]:
        """Plain data for the task; the agent sees the prompt alone."""
        return {
            "before": dict(self.before),
            "after": dict(self.after),
            "solutions": [list(solution) for solution in self.solutions],
            "modes": dict(self.modes),
            "modes_after": dict(self.modes_after),
            "reruns": [{"script": r.script, "files": dict(r.files), "output": r.output} for r in self.reruns],
            "repository": self.repository,
            "commit": self.commit,
        }


Family: TypeAlias = "Callable[[Draw, int], Puzzle]"
"""Makes the puzzle of one task from its draws and its level (1 to 5)."""


class Draw:
    """Draws without replacement: no word of a task is another one, or a part of one, so that a search for one finds
    that one alone. `bystanders` is the number of files that a task does not speak of."""

    def __init__(self, rng: random.Random, bystanders: int = 2) -> None:
        self.rng, self.bystanders = rng, bystanders
        self._words: list[str] = []
        self._numbers: list[int] = []

    def word(self) -> str:
        while True:
            word = self.rng.choice(WORDS)
            if not any(word in other or other in word for other in self._words):
                self._words.append(word)
                return word

    def words(self, count: int) -> list[str]:
        return [self.word() for _ in range(count)]

    def number(self) -> int:
        """A number from 1 to 99, none twice."""
        while True:
            number = self.rng.choice(NUMBERS[1:])
            if number not in self._numbers:
                self._numbers.append(number)
                return number

    def say(self, *sentences: str) -> str:
        return self.rng.choice(sentences)

    def lines(self, count: int = 2) -> list[str]:
        return self.words(count)

    def texts(self, names: Sequence[str], lines: int = 2) -> dict[str, str]:
        """A small text of its own for every name."""
        return {name: text(self.words(lines)) for name in names}

    def others(self, lines: int = 2) -> dict[str, str]:
        """The bystanders."""
        return self.texts(self.words(self.bystanders), lines)

    def shuffled(self, files: Mapping[str, Content]) -> dict[str, Content]:
        """The same files in a drawn order, the order in which they are made."""
        items = list(files.items())
        self.rng.shuffle(items)
        return dict(items)


def text(lines: Sequence[str]) -> str:
    """Lines as a file's contents."""
    return "".join(f"{line}\n" for line in lines)
