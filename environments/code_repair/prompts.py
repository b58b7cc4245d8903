"""What the user says: a few phrasings for each level, the more to find out the higher."""

from __future__ import annotations

import random

from k3rl.environments.code_repair.package import Function

PROMPTS: dict[int, tuple[str, ...]] = {
    1: (
        "Fix {path}: {name} is wrong.\n{source}",
        "Test of {name} fails. Fix {path}:\n{source}",
        "{name} has a bug. Repair {path}:\n{source}",
    ),
    2: (
        "Fix {name} in {path}.",
        "Test of {name} fails. Repair {path}.",
        "There is a bug in {path}, in {name}.",
    ),
    3: (
        "{test} fails. Fix the code.",
        "Make {test} pass.",
        "Find the bug behind {test}.",
    ),
    4: (
        "A test fails. Fix the code.",
        "Run the tests and fix the bug.",
        "Find the bug in app.",
    ),
    5: (
        "Two tests fail. Fix the code.",
        "Run the tests and fix both bugs.",
        "Find the two bugs in app.",
    ),
}
"""By level. Placeholders are about the (first) spoilt function."""


def prompt(rng: random.Random, level: int, spoilt: Function) -> str:
    """One phrasing; `source` ends without a newline."""
    return rng.choice(PROMPTS[level]).format(
        path=spoilt.path, name=spoilt.name, test=spoilt.test, source=spoilt.shipped.rstrip("\n")
    )
