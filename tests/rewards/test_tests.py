"""Rewards from test records."""

import pytest

from k3rl.rewards.tests import Passed, compare


def test_shares_and_wholes() -> None:
    artifacts = {"suite": {"a": "passed", "b": "failed", "c": "passed"}}
    assert Passed(record="suite", tests=("a", "b", "c", "gone"))(artifacts) == 0.5
    assert Passed(record="suite", tests=("a", "c"))(artifacts) == 1.0
    assert Passed(record="suite", tests=("a", "c"), whole=True)(artifacts) == 1.0
    assert Passed(record="suite", tests=("a", "b"), whole=True)(artifacts) == 0.0
    assert Passed(record="suite", tests=("gone",), whole=True)(artifacts) == 0.0
    assert Passed(record="suite", tests=())(artifacts) == 1.0


@pytest.mark.parametrize("outcome", ["Passed", "passed ", True, 1, None, ["passed"], {"passed": 1}])
def test_only_the_word_counts(outcome: object) -> None:
    assert Passed(record="suite", tests=("a",))({"suite": {"a": outcome}}) == 0.0


def test_values_are_compared_as_texts_in_order() -> None:
    expected = {"a": ["1", "true"], "b": ["[]"]}
    assert compare(expected, {"a": ["1", "true"], "b": ["[]"]}) == {"a": "passed", "b": "passed"}
    assert compare(expected, {"a": ["true", "1"], "b": ["[]", "[]"]}) == {"a": "failed", "b": "failed"}


@pytest.mark.parametrize("observed", [None, [], "passed", 3, {"a": None}, {"a": "12"}, {"a": {"0": "1"}}, {"b": ["1"]}])
def test_whatever_comes_back_is_only_data(observed: object) -> None:
    assert compare({"a": ["1"]}, observed) == {"a": "failed"}
