"""The repository of one task: `app/` of several modules, `tests/` with a real suite, and the bugs planted in it.

Every function has visible cases (its test) and hidden ones (other arguments, judged outside the sandbox). A mutant
is planted only if it fails a visible case and also hidden ones: the visible outputs alone never say enough.
"""

from __future__ import annotations

import copy
import json
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from k3rl.environments.code_repair.inputs import Draw, arguments
from k3rl.environments.code_repair.mutate import KINDS, mutations
from k3rl.environments.code_repair.shapes import Shape
from k3rl.environments.pools import WORDS
from k3rl.errors import EnvironmentFault
from k3rl.types import Json

VISIBLE, HIDDEN = 2, 5
"""Cases per function in its test, and kept for scoring."""

SIMPLE_KINDS = tuple(kind for kind in KINDS if kind not in ("removed", "shuffled"))
"""Bugs that change one line and nothing else."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Case:
    """`Case(inputs=[5], expected=12)`."""

    inputs: list[Json]
    expected: Json


@dataclass(frozen=True, kw_only=True, slots=True)
class Bug:
    """What was done to a function; `old` and `new` are the blocks of text that a repair exchanges, each stripped."""

    kind: str
    source: str
    old: str
    new: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Function:
    """One function of the repository with its cases; `source` is the right one."""

    module: str
    name: str
    source: str
    visible: tuple[Case, ...]
    hidden: tuple[Case, ...]
    bug: Bug | None = None

    @property
    def path(self) -> str:
        return f"app/{self.module}.py"

    @property
    def test(self) -> str:
        """The pytest id of its test."""
        return f"tests/test_{self.module}.py::test_{self.name}"

    @property
    def rule(self) -> str:
        """What the docstring says it does."""
        return self.source.split('"""')[1]

    @property
    def shipped(self) -> str:
        """The source that the agent finds."""
        return self.bug.source if self.bug else self.source


class Names:
    """Pool words, each handed out once per task, so that a line is found again by its names."""

    def __init__(self, rng: random.Random) -> None:
        self._left = rng.sample(WORDS, len(WORDS))

    def take(self) -> str:
        return self._left.pop()


def load(source: str, name: str) -> Callable[[list[Json]], str]:
    """One function of generated code, as a call from inputs to its canonical JSON result or the error's name.

    It runs right here: for code of our own making only.
    """
    space: dict[str, Json] = {}
    exec(compile(source, "<generated>", "exec"), space)

    def call(inputs: list[Json]) -> str:
        try:
            return canonical(space[name](*copy.deepcopy(inputs)))
        except Exception as error:
            return f"!{type(error).__name__}"

    return call


def canonical(value: Json) -> str:
    """JSON text by which results are compared: tells True, 1 and 1.0 apart."""
    return json.dumps(value, sort_keys=True)


def _cases(rng: random.Random, shape: Shape, draw: Draw, source: str, name: str, count: int) -> list[Case]:
    """Up to `count` cases with distinct inputs, in random order."""
    call = load(source, name)
    found: dict[str, Case] = {}
    for _ in range(2 * count):
        inputs = arguments(shape.inputs, draw)
        result = call(inputs)
        assert not result.startswith("!"), f"{shape.rule!r} raises {result} on {inputs}"
        found.setdefault(json.dumps(inputs), Case(inputs=inputs, expected=json.loads(result)))
        if len(found) == count:
            break
    return list(found.values())


def _varied(cases: Sequence[Case]) -> bool:
    """Whether no single constant answers them all."""
    return len({canonical(case.expected) for case in cases}) > 1


def blocks(wrong: str, right: str) -> tuple[str, str]:
    """The smallest runs of whole lines in which two sources differ, stripped of outer blanks.

    Where a line is missing altogether, a neighbour is taken into both, so that there is something to replace.
    """
    a, b = wrong.splitlines(), right.splitlines()
    start = 0
    while start < min(len(a), len(b)) and a[start] == b[start]:
        start += 1
    end = 0
    while end < min(len(a), len(b)) - start and a[-1 - end] == b[-1 - end]:
        end += 1
    if start + end == len(a):
        start, end = (start, end - 1) if end else (start - 1, end)
    return "\n".join(a[start : len(a) - end]).strip(), "\n".join(b[start : len(b) - end]).strip()


def make_function(rng: random.Random, module: str, shape: Shape, names: Names) -> tuple[Function, list[Case]]:
    """A right function, and more cases to choose from if a bug is to be planted in it."""
    name = names.take()
    n = rng.randint(3, 20)
    numbers = {"n": n, "m": n + rng.randint(4, 15), "k": rng.randint(1, 2)}
    words = {key: names.take() for key in "pqr"}
    fields = {**{key: names.take() for key in "abc"}, **numbers, **words}
    params = ", ".join(str(fields["abc"[i]]) for i in range(len(shape.inputs.split())))
    lines = [f"def {name}({params}):", f'    """{shape.rule.format(**fields)}"""']
    lines += [f"    {line}" for line in shape.body.format(**fields).splitlines()]
    source = "\n".join(lines) + "\n"
    draw = Draw(rng=rng, numbers=(n, numbers["m"]), words=tuple(words.values()))
    for _ in range(100):
        cases = _cases(rng, shape, draw, source, name, 3 * (VISIBLE + HIDDEN))
        if chosen := _choose(rng, [], cases):
            return Function(module=module, name=name, source=source, visible=chosen[0], hidden=chosen[1]), cases
    raise EnvironmentFault(f"shape {shape.rule!r} always gives the same answer; widen its inputs {shape.inputs!r}")


def plant(rng: random.Random, function: Function, cases: list[Case], kinds: tuple[str, ...]) -> Function | None:
    """The function with one bug, its cases chosen anew so that test and hidden cases see it; None if none fits."""
    found = mutations(function.source, kinds)
    by_kind = sorted({mutant.kind for mutant in found})
    for kind in rng.sample(by_kind, len(by_kind)):
        mutants = [mutant for mutant in found if mutant.kind == kind]
        for mutant in rng.sample(mutants, len(mutants)):
            call = load(mutant.source, function.name)
            wrong = [case for case in cases if call(case.inputs) != canonical(case.expected)]
            chosen = _choose(rng, wrong, [case for case in cases if case not in wrong]) if len(wrong) > 2 else None
            old, new = blocks(mutant.source, function.source)
            if chosen and mutant.source.count(old) == 1:
                bug = Bug(kind=kind, source=mutant.source, old=old, new=new)
                return replace(function, visible=chosen[0], hidden=chosen[1], bug=bug)
    return None


def _choose(
    rng: random.Random, wrong: list[Case], others: list[Case]
) -> tuple[tuple[Case, ...], tuple[Case, ...]] | None:
    """Visible and hidden cases with varied answers each, or None; of `wrong` ones, if any, at least 1 and 2."""
    for _ in range(20):
        rng.shuffle(wrong)
        rest = wrong[3:] + others
        rng.shuffle(rest)
        free = VISIBLE - len(wrong[:1])
        visible, hidden = wrong[:1] + rest[:free], (wrong[1:3] + rest[free:])[:HIDDEN]
        if _varied(visible) and _varied(hidden):
            return tuple(visible), tuple(hidden)
    return None


def make_functions(
    rng: random.Random, shapes: tuple[Shape, ...], *, modules: int, functions: int, bugs: int, kinds: tuple[str, ...]
) -> list[Function]:
    """All functions of a repository, module by module; the bugs lie in different modules."""
    names = Names(rng)
    order = [rng.sample(shapes, len(shapes)) for _ in range(-(-modules * functions // len(shapes)))]
    queue = [shape for part in order for shape in part]
    made: list[Function] = []
    spoilt = set(rng.sample(range(modules), bugs))
    for index in range(modules):
        module = names.take()
        block = [make_function(rng, module, queue.pop(), names) for _ in range(functions)]
        if index in spoilt:
            at = rng.randrange(functions)
            planted = plant(rng, *block[at], kinds)
            while planted is None:
                block[at] = make_function(rng, module, rng.choice(shapes), names)
                planted = plant(rng, *block[at], kinds)
            block[at] = (planted, [])
        made += [function for function, _ in block]
    return made


def module_text(functions: list[Function]) -> str:
    """A module as the agent finds it."""
    return "\n\n".join(function.shipped for function in functions)


def suite_text(functions: list[Function]) -> str:
    """The suite of one module: one test per function, one assertion per visible case."""
    module = functions[0].module
    parts = [f"from app.{module} import {', '.join(function.name for function in functions)}\n"]
    for function in functions:
        lines = [f"def test_{function.name}():"]
        for case in function.visible:
            call = f"{function.name}({', '.join(map(repr, case.inputs))})"
            lines.append(f"    assert {call} == {case.expected!r}")
        parts.append("\n".join(lines) + "\n")
    return "\n\n".join(parts)


def files(functions: list[Function]) -> dict[str, str]:
    """The repository as path and text, in a fixed order."""
    tree = {"app/__init__.py": ""}
    modules = list(dict.fromkeys(function.module for function in functions))
    members = {module: [f for f in functions if f.module == module] for module in modules}
    tree |= {f"app/{module}.py": module_text(members[module]) for module in modules}
    return tree | {f"tests/test_{module}.py": suite_text(members[module]) for module in modules}
