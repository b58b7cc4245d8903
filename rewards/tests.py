"""Rewards from test records: tests that had to begin to pass, and tests that had to go on passing.

A record maps a test's id to its outcome; only the word "passed" counts, a test that is missing did not pass.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from k3rl.reward import Artifacts
from k3rl.types import Json

PASSED, FAILED = "passed", "failed"


@dataclass(frozen=True, kw_only=True, slots=True)
class Passed:
    """`Passed(record="suite", tests=("tests/test_kiwi.py::test_fig",))`: the share of `tests` that passed by the
    record of that name; with `whole`, 1 if all did, else 0. No tests at all are 1."""

    record: str
    tests: tuple[str, ...]
    whole: bool = False

    def __call__(self, artifacts: Artifacts) -> float:
        record: Mapping[str, Json] = artifacts[self.record]
        passed = [test for test in self.tests if record.get(test) == PASSED]
        if self.whole or not self.tests:
            return float(len(passed) == len(self.tests))
        return len(passed) / len(self.tests)


def compare(expected: Mapping[str, Sequence[str]], observed: Json) -> dict[str, str]:
    """A record from values: a test passed if the texts observed for it equal the expected ones, all and in order.

    `expected` never leaves the judge's process, so whoever produced `observed` had to compute it. `observed` is what
    came out of a process that ran untrusted code: any JSON value, of which a list of texts by test id is believed.
    """
    answers = observed if isinstance(observed, dict) else {}
    return {test: PASSED if answers.get(test) == list(values) else FAILED for test, values in expected.items()}
