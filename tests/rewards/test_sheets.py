"""Comparison of workbooks as plain values."""

import pytest

from k3rl.rewards.sheets import all_same, changed, same_cell, same_value, typed

BEFORE = {"plum": {"A1": ["s", "fig"], "B1": ["n", 7]}, "lime": {}}


def test_changed_names_every_difference() -> None:
    assert changed(BEFORE, BEFORE) == set()
    assert changed(BEFORE, {"plum": {"A1": ["s", "fig"], "B1": ["n", 7.0]}, "lime": {}}) == set()
    after = {"plum": {"A1": ["s", "kiwi"], "C9": ["n", 1]}, "lime": {}}
    assert changed(BEFORE, after) == {"plum!A1", "plum!B1", "plum!C9"}
    assert changed(BEFORE, {"plum": BEFORE["plum"]}) == {"lime!"}
    assert changed(BEFORE, BEFORE | {"oak": {}}) == {"oak!"}
    assert changed(BEFORE, dict(reversed(BEFORE.items()))) == {"plum!", "lime!"}


def test_types_count() -> None:
    assert not same_cell(["n", 7], ["s", "7"])
    assert not same_cell(["f", "=A1"], ["s", "=A1"])
    assert not same_cell(["n", 1], ["b", True])
    assert not same_cell(None, ["s", ""])
    assert same_cell(None, None)
    assert [typed("fig"), typed(7), typed(0.5)] == [["s", "fig"], ["n", 7], ["n", 0.5]]


@pytest.mark.parametrize(
    ("left", "right", "same"),
    [
        (7, 7.0, True),
        (0.1 + 0.2, 0.3, True),
        (7, 7.001, False),
        (7, "7", False),
        (1, True, False),
        (None, None, False),
        (None, 0, False),
        ({"error": "#N/A"}, {"error": "#N/A"}, False),
        ("fig", "fig", True),
        ("fig", "Fig", False),
        (float("nan"), float("nan"), False),
    ],
)
def test_same_value(left: object, right: object, same: bool) -> None:
    assert same_value(left, right) is same


def test_all_same_needs_something_to_compare() -> None:
    assert all_same([1, "a"], [1.0, "a"])
    assert not all_same([], [])
    assert not all_same([1], [1, 1])
    assert not all_same([1, 2], [1, 3])
