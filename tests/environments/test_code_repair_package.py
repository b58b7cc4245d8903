"""Generated repositories: what rules promise, what bugs break, what a task shows."""

import json
import random
import re
from collections.abc import Callable
from typing import Any

import pytest

from k3rl.environments.code_repair.domain import LEVELS, CodeRepair
from k3rl.environments.code_repair.mutate import KINDS
from k3rl.environments.code_repair.package import (
    Names,
    blocks,
    canonical,
    files,
    load,
    make_function,
    make_functions,
)
from k3rl.environments.code_repair.shapes import HELDOUT, SHAPES, TRAINED
from k3rl.errors import UserError
from k3rl.types import SPLITS, Task

ALL = [(family, number) for family, shapes in SHAPES.items() for number in range(len(shapes))]
RULES: list[tuple[str, Callable[..., Any]]] = [
    # What the words mean, written without a look at the code; arguments: the call's inputs, then the rule's words.
    (r"\w+ plus (\d+)", lambda x, n: x + int(n)),
    (r"\w+ minus (\d+)", lambda x, n: x - int(n)),
    (r"\w+ minus \w+", lambda x, y: x - y),
    (r"\w+ times (\d+), plus \w+", lambda x, y, n: sum([x] * int(n)) + y),
    (r"rest of \w+ by (\d+)", lambda x, n: divmod(x, int(n))[1]),
    (r"\w+ by (\d+), whole", lambda x, n: divmod(x, int(n))[0]),
    (r"distance of \w+ and \w+", lambda x, y: max(x, y) - min(x, y)),
    (r"\w+ plus (\d+), doubled", lambda x, n: x + x + int(n) + int(n)),
    (r"sum of \w+", lambda xs: sum(xs)),
    (r"\w+ below \w+", lambda x, y: y - x > 0),
    (r"\w+ at most \w+", lambda x, y: y - x >= 0),
    (r"\w+ at least \w+", lambda x, y: x - y >= 0),
    (r"\w+ equals \w+", lambda x, y: x - y == 0),
    (r"\w+ and \w+ above (\d+)", lambda x, y, n: min(x, y) > int(n)),
    (r"\w+ or \w+ above (\d+)", lambda x, y, n: max(x, y) > int(n)),
    (r"smaller of \w+ and (\d+)", lambda x, n: sorted([x, int(n)])[0]),
    (r"\w+, at most (\d+)", lambda x, n: sorted([x, int(n)])[0]),
    (r"first of \w+", lambda xs: next(iter(xs))),
    (r"last of \w+", lambda xs: next(reversed(xs))),
    (r"first (\d+) of \w+", lambda xs, k: [x for i, x in enumerate(xs) if i < int(k)]),
    (r"\w+ after the first (\d+)", lambda xs, k: [x for i, x in enumerate(xs) if i >= int(k)]),
    (r"\w+, largest first", lambda xs: [-x for x in sorted(-x for x in xs)]),
    (r"\w+ with \w+ at the end", lambda xs, x: [*xs, x]),
    (r"\w+ with \w+ in front", lambda xs, x: [x, *xs]),
    (r"oldest of \w+", lambda xs: next(iter(xs))),
    (r"newest of \w+", lambda xs: next(reversed(xs))),
    (r"later of \w+ and \w+", lambda x, y: sorted([x, y])[1]),
    (r"total of \w+", lambda counts: sum(n for _, n in counts.items())),
    (r"one more \w+ in \w+", lambda counts, key: {**counts, key: counts[key] + 1 if key in counts else 1}),
    (r"\w+ in capitals", lambda text: "".join(chr(ord(c) - 32) for c in text)),
    (r"\w+, dash, \w+", lambda x, y: f"{x}-{y}"),
    (r"key of \w+", lambda text: re.match("(.*)=", text)[1]),  # type: ignore[index]
    (r"value of \w+", lambda text: re.search("=(.*)", text)[1]),  # type: ignore[index]
    (r"'(\w+)' on '(\w+)', else \w+", lambda x, y, q, p: {p: q}.get(x, y)),
    (r"\w+ on '(\w+)', else '(\w+)'", lambda x, y, p, q: {p: y}.get(x, q)),
    (r"\w+ is neither '(\w+)' nor '(\w+)'", lambda x, p, q: x not in {p, q}),
    (r"length from \w+ to \w+", lambda x, y: y - x),
    (r"\w+ from (\d+) to (\d+)", lambda x, n, m: sorted([int(n), x, int(m)])[1]),
    (r"row of cell \w+, width (\d+)", lambda x, n: divmod(x, int(n))[0]),
    (r"last row of \w+", lambda rows: next(reversed(rows))),
]


def domain_task(split: Any, level: int, index: int, seed: int = 3) -> Task:
    return CodeRepair().task(split, seed=seed, level=level, index=index)


def test_cases_agree_with_what_the_rule_says() -> None:
    used: set[str] = set()
    for family, number in ALL:
        for seed in range(4):
            rng = random.Random(f"{family}{number}{seed}")
            function, cases = make_function(rng, "oak", SHAPES[family][number], Names(rng))
            for pattern, meaning in RULES:
                match = re.fullmatch(pattern, function.rule)
                if match is None or (pattern == r"\w+ minus \w+" and function.rule.split()[-1].isdigit()):
                    continue
                used.add(pattern)
                for case in cases:
                    assert meaning(*case.inputs, *match.groups()) == case.expected, (function.source, case)
    assert used == {pattern for pattern, _ in RULES}


@pytest.mark.parametrize("family", SHAPES)
def test_bugs_fail_visible_and_hidden_cases_and_the_rest_is_sound(family: str) -> None:
    for seed in range(12):
        rng = random.Random(seed)
        made = make_functions(rng, SHAPES[family], modules=3, functions=2, bugs=2, kinds=tuple(KINDS))
        spoilt = [function for function in made if function.bug]
        assert len({function.module for function in spoilt}) == 2
        for function in made:
            right, shipped = load(function.source, function.name), load(function.shipped, function.name)
            for cases in (function.visible, function.hidden):
                assert [right(case.inputs) for case in cases] == [canonical(case.expected) for case in cases]
                assert len({canonical(case.expected) for case in cases}) > 1  # no constant passes
                wrong = sum(shipped(case.inputs) != canonical(case.expected) for case in cases)
                assert (wrong > 0) == (function.bug is not None)
            assert not [case for case in function.visible if case in function.hidden]


@pytest.mark.parametrize("family", SHAPES)
def test_the_repair_of_each_bug_gives_the_right_source_back(family: str) -> None:
    for seed in range(12):
        rng = random.Random(seed)
        made = make_functions(rng, SHAPES[family], modules=2, functions=2, bugs=2, kinds=tuple(KINDS))
        tree = files(made)
        for function in made:
            if function.bug:
                assert tree[function.path].count(function.bug.old) == 1
                assert function.source in tree[function.path].replace(function.bug.old, function.bug.new)


def test_blocks() -> None:
    assert blocks("a\n  b\nc\n", "a\n  x\nc\n") == ("b", "x")
    assert blocks("a\nc\n", "a\n  if b:\n    d\nc\n") == ("c", "if b:\n    d\nc")
    assert blocks("a\n  c\n  b\nd\n", "a\n  b\n  c\nd\n") == ("c\n  b", "b\n  c")
    assert blocks("a\n", "a\nb\n") == ("a", "a\nb")


@pytest.mark.parametrize("split", SPLITS)
def test_same_task_from_the_same_place_and_no_other(split: Any) -> None:
    tasks = [domain_task(split, level, index) for level in LEVELS for index in range(10)]
    again = [domain_task(split, level, index) for level in LEVELS for index in range(10)]
    assert tasks == again
    assert len({task.id for task in tasks}) == len(tasks)
    others = [domain_task(other, 2, index) for other in SPLITS if other != split for index in range(10)]
    mine = {json.dumps(task.payload["files"]) for task in tasks}
    assert not mine & {json.dumps(task.payload["files"]) for task in others}
    families = HELDOUT if split == "test_heldout" else TRAINED
    assert {task.family for task in tasks} == set(families)


def test_what_a_level_shows() -> None:
    for level, plan in LEVELS.items():
        for index in range(80):
            task = domain_task("train", level, index)
            text, bugs = task.messages[0].content, task.payload["bugs"]
            assert len(text.split()) <= 40
            assert len(bugs) == plan.bugs == len(task.payload["fail_to_pass"])
            assert task.payload["pass_to_pass"]
            assert json.loads(json.dumps(task.payload)) == task.payload
            for bug in bugs:
                assert bug["new"] not in text  # the repair is never given away
                assert (bug["path"] in text) == (level <= 2)
                assert (bug["test"] in text) == (level == 3)
                assert (bug["old"] in text) == (level == 1)
                assert len(task.payload["files"][bug["path"]]) <= (200 if level <= 2 else 400)


@pytest.mark.parametrize(
    ("split", "level", "family"),
    [("train", 0, None), ("train", 6, None), ("train", 1, "grids"), ("test_heldout", 1, "text"), ("dev", 1, None)],
)
def test_tasks_that_do_not_exist_are_refused(split: Any, level: int, family: str | None) -> None:
    with pytest.raises(UserError, match="code_repair has no task"):
        CodeRepair().task(split, seed=1, level=level, index=0, family=family)
