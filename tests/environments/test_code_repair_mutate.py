"""Mutations against lists written by hand, and against what must hold for every one of them."""

import ast

import pytest

from k3rl.environments.code_repair.mutate import KINDS, mutations
from k3rl.environments.code_repair.shapes import SHAPES


def one_line(kind: str, expression: str) -> set[str]:
    """The mutants of one kind of `return EXPRESSION` in a function of three arguments, without the `return`."""
    head = "def f(a, b, c):\n    return "
    found = mutations(f"{head}{expression}\n", (kind,))
    assert all(m.kind == kind and m.source.startswith(head) for m in found)
    return {mutant.source.removeprefix(head).rstrip("\n") for mutant in found}


@pytest.mark.parametrize(
    ("kind", "expression", "mutants"),
    [
        ("operator", "a + b", {"a - b"}),
        ("operator", "(a - b) * c", {"(a + b) * c", "(a - b) + c"}),
        ("operator", "a // 7", {"a % 7"}),
        ("operator", "(a + 1) % 7", {"(a - 1) % 7", "(a + 1) // 7"}),
        ("comparison", "a < b", {"a <= b", "a > b"}),
        ("comparison", "3 <= a <= 7", {"3 < a <= 7", "3 >= a <= 7", "3 <= a < 7", "3 <= a >= 7"}),
        ("comparison", "a in b", {"a not in b"}),
        ("comparison", "a == b", {"a != b"}),
        ("logic", "a > 1 and b > 1", {"a > 1 or b > 1"}),
        ("logic", "not a", {"a"}),
        ("off_by_one", "a + 7", {"a + 8", "a + 6"}),
        ("off_by_one", "a[0]", {"a[1]"}),
        ("constant", "a + 7", {"a + 10"}),
        ("constant", "a.replace('-', '_')", {"a.replace('_', '_')", "a.replace('-', '-')"}),
        ("constant", "sorted(a, reverse=True)", {"sorted(a, reverse=False)"}),
        ("swapped", "a - b", {"b - a"}),
        ("swapped", "max(a, 7)", {"max(7, a)"}),
        ("swapped", "a * b", set()),
        ("name", "a + 1", {"b + 1", "c + 1"}),
        ("attribute", "a.upper()", {"a.lower()"}),
        ("attribute", "min(a, b)", {"max(a, b)"}),
        ("slice", "a[:3]", {"a[3:]"}),
        ("slice", "a[0] + a[-1]", {"a[-1] + a[-1]", "a[0] + a[0]"}),
        ("slice", "a[1:3]", set()),
    ],
)
def test_expressions(kind: str, expression: str, mutants: set[str]) -> None:
    assert one_line(kind, expression) == mutants


def test_a_branch_is_removed_whole_and_only_where_something_is_left() -> None:
    source = "def f(a):\n    if a > 7:\n        return 7\n    return a\n"
    assert [m.source for m in mutations(source, ("removed",))] == ["def f(a):\n    return a\n"]
    assert mutations("def f(a):\n    a.sort()\n", ("removed",)) == []


def test_neighbouring_statements_change_places() -> None:
    source = "def f(a):\n    b = a\n    b += 1\n    return b\n"
    assert [m.source for m in mutations(source, ("shuffled",))] == ["def f(a):\n    b += 1\n    b = a\n    return b\n"]


def test_a_docstring_is_never_touched() -> None:
    source = 'def f(a):\n    """a plus 7"""\n    return a + 7\n'
    assert all('"""a plus 7"""' in mutant.source for mutant in mutations(source))
    assert {mutant.kind for mutant in mutations(source)} == {"operator", "off_by_one", "constant", "swapped"}


@pytest.mark.parametrize("body", [shape.body for shapes in SHAPES.values() for shape in shapes])
def test_every_mutant_is_another_valid_function(body: str) -> None:
    fields = {**dict(zip("abcpqr", ("fig", "oak", "elm", "red", "tan", "ash"), strict=True)), "n": 7, "m": 9, "k": 2}
    source = "def f(fig, oak, elm):\n" + "".join(f"    {line}\n" for line in body.format(**fields).splitlines())
    found = mutations(source)
    assert len({mutant.source for mutant in found}) == len(found) > 0
    original = ast.dump(ast.parse(source))
    assert all(ast.dump(ast.parse(mutant.source)) != original for mutant in found)
    assert mutations(source) == found


def test_each_kind_has_a_shape_that_it_applies_to() -> None:
    fields = {**dict(zip("abcpqr", ("fig", "oak", "elm", "red", "tan", "ash"), strict=True)), "n": 7, "m": 9, "k": 2}
    seen: set[str] = set()
    for shapes in SHAPES.values():
        for shape in shapes:
            lines = "".join(f"    {line}\n" for line in shape.body.format(**fields).splitlines())
            seen |= {mutant.kind for mutant in mutations(f"def f(fig, oak):\n{lines}")}
    assert seen == set(KINDS)


@pytest.mark.parametrize("source", ["a = 1\n", "def f():\n    pass\ndef g():\n    pass\n", ""])
def test_only_one_function_at_a_time(source: str) -> None:
    with pytest.raises(ValueError, match="one function"):
        mutations(source)


def test_characters_that_would_shift_positions_are_refused() -> None:
    with pytest.raises(ValueError, match="ASCII"):
        mutations('def f(a):\n    return "é" + a\n')
