"""Differences of trees, by hand."""

from k3rl.rewards.files import Difference, difference, same, same_modes


def test_a_tree_equals_itself_with_the_folders_above_its_paths() -> None:
    found = {"a": "x\n", "d/": None, "d/e/": None, "d/e/f": {"link": "a"}}
    expected = {"a": "x\n", "d/e/f": {"link": "a"}}
    assert difference(expected, found) == Difference(missing=(), wrong=(), extra=())
    assert difference(expected, found).parts() == {"present": 1.0, "contents": 1.0, "nothing_else": 1.0}


def test_every_kind_of_difference() -> None:
    found = {"a": "x", "l": {"link": "b"}, "new": "", "d/": None}
    expected = {"a": "y", "l": {"link": "a"}, "gone": "", "e/": ""}
    assert difference(expected, found) == Difference(missing=("e/", "gone"), wrong=("a", "l"), extra=("d/", "new"))
    assert difference(expected, found).parts() == {"present": 0.0, "contents": 0.0, "nothing_else": 0.0}


def test_contents() -> None:
    assert same({"json": {"a": [1, "b"]}}, '{ "a": [1, "b"] }')
    assert not same({"json": {"a": 1}}, '{"a": 2}')
    assert not same({"json": {"a": 1}}, '{"a": 1} {"a": 1}')
    assert not same({"json": [1]}, "[" * 100_000)
    assert not same({"json": 1}, b"1\xff")
    assert same({"any": True}, "whatever")
    assert not same({"any": True}, {"link": "a"})
    assert not same("a", {"link": "a"})
    assert same({"tar": {"a": "x"}}, {"tar": {"a": "x"}})
    assert not same({"tar": {"a": "x"}}, {"tar": {"a": "x", "b": "y"}})


def test_modes() -> None:
    assert same_modes({"a": 0o644}, {"a": 0o644, "b": 0o600}) == 1.0
    assert same_modes({"a": 0o644}, {"a": 0o640}) == 0.0
    assert same_modes({"a": 0o644}, {}) == 0.0
    assert same_modes({}, {}) == 1.0
