"""The code repair domain: generated repositories with planted bugs, episodes, judging, reference policy, cheats."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from k3rl.environment import Solution
from k3rl.environments.code_repair import cheats, solver
from k3rl.environments.code_repair.mutate import KINDS
from k3rl.environments.code_repair.package import SIMPLE_KINDS, Bug, Function, files, make_functions
from k3rl.environments.code_repair.prompts import prompt
from k3rl.environments.code_repair.runs import Runs
from k3rl.environments.code_repair.scoring import judge
from k3rl.environments.code_repair.shapes import HELDOUT, TRAINED
from k3rl.environments.code_repair.workspace import TOOLS, Workspace
from k3rl.environments.sandbox import SandboxPool, SandboxSpec
from k3rl.errors import ConfigError, UserError
from k3rl.types import SPLITS, Json, Limits, Message, Score, Split, Task

_SPEC = SandboxSpec(
    packages=("pytest",),
    preload=("suite_jobs.runner", "suite_jobs.warmed"),
    jobs=("k3rl.environments.code_repair.suite_jobs",),
    env={"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"},
    cpu_seconds=2.0,
)


@dataclass(frozen=True, kw_only=True, slots=True)
class Level:
    """Size of the repository, number and kinds of bugs, turns allowed."""

    modules: int
    functions: int  # in each module
    bugs: int
    kinds: tuple[str, ...]
    turns: int


LEVELS: dict[int, Level] = {
    1: Level(modules=2, functions=1, bugs=1, kinds=SIMPLE_KINDS, turns=5),  # the function stands in the prompt
    2: Level(modules=3, functions=1, bugs=1, kinds=SIMPLE_KINDS, turns=6),  # the file must be viewed
    3: Level(modules=2, functions=2, bugs=1, kinds=tuple(KINDS), turns=6),  # a test's name tells file and function
    4: Level(modules=3, functions=2, bugs=1, kinds=tuple(KINDS), turns=8),  # the tests tell
    5: Level(modules=3, functions=2, bugs=2, kinds=tuple(KINDS), turns=12),  # two bugs in two files
}


def _function(function: Function) -> dict[str, Json]:
    """What scoring needs: how to call it, hidden inputs, expected results."""
    return {
        "module": f"app.{function.module}",
        "name": function.name,
        "inputs": [case.inputs for case in function.hidden],
        "expected": [case.expected for case in function.hidden],
    }


def _bug(function: Function, bug: Bug) -> dict[str, Json]:
    """What reference policy and cheats need: where it is, what repairs it, the calls that the suite makes."""
    return {
        "path": function.path,
        "test": function.test,
        "name": function.name,
        "kind": bug.kind,
        "old": bug.old,
        "new": bug.new,
        "head": function.source.split("\n")[0],
        "rule": function.rule,
        "shown": [[case.inputs, case.expected] for case in function.visible],
    }


class CodeRepair:
    """`sandboxes` runs of tests at once (an episode holds one only while tests run); `seconds` of wall time each."""

    name = "code_repair"
    levels = len(LEVELS)
    families = tuple(TRAINED)
    heldout = tuple(HELDOUT)

    def __init__(self, *, sandboxes: int = 4, seconds: float = 20.0) -> None:
        if not seconds > 0:
            raise ConfigError(f"seconds={seconds:g}: must be above 0")
        self.sandbox_spec = _SPEC
        self._pool = SandboxPool(_SPEC, sandboxes)
        self._runs = Runs(self._pool, seconds=seconds)

    def task(self, split: Split, *, seed: int, level: int, index: int, family: str | None = None) -> Task:
        """Families take turns by index unless one is named. Raises UserError for what does not exist."""
        shapes = HELDOUT if split == "test_heldout" else TRAINED
        chosen = family or list(shapes)[index % len(shapes)]
        if split not in SPLITS or level not in LEVELS or chosen not in shapes:
            raise UserError(
                f"code_repair has no task of split {split!r}, level {level}, family {chosen!r}; levels are 1 to "
                f"{self.levels}, the split's families {', '.join(shapes)}"
            )
        rng = random.Random(f"{self.name}/{split}/{seed}/{chosen}/{level}/{index}")
        plan = LEVELS[level]
        made = make_functions(
            rng, shapes[chosen], modules=plan.modules, functions=plan.functions, bugs=plan.bugs, kinds=plan.kinds
        )
        made.sort(key=lambda function: function.module)  # the order in which pytest reports
        spoilt = [function for function in made if function.bug]
        return Task(
            domain=self.name,
            id=f"{self.name}/{split}/{chosen}/{level}/{seed}-{index}",
            split=split,
            family=chosen,
            level=level,
            seed=seed,
            messages=(Message(role="user", content=prompt(rng, level, spoilt[0])),),
            tools=TOOLS,
            limits=Limits(turns=plan.turns),
            payload={
                "files": files(made),
                "functions": {function.test: _function(function) for function in made},
                "bugs": [_bug(function, function.bug) for function in spoilt if function.bug],
                "fail_to_pass": [function.test for function in spoilt],
                "pass_to_pass": [function.test for function in made if not function.bug],
            },
        )

    async def open(self, task: Task) -> Workspace:
        """A copy of the repository; a sandbox is only taken when tests run."""
        return Workspace(task, self._runs)

    async def score(self, task: Task, artifacts: Mapping[str, Json]) -> Score:
        """1 if hidden values and the restored suite are right as a whole, else 0."""
        return await judge(task, artifacts, self._runs)

    def solve(self, task: Task, variant: int = 0) -> Solution:
        """The reference policy."""
        return solver.play(solver.solution(task, variant))

    def exploits(self, task: Task) -> Mapping[str, Callable[[], Solution]]:
        """Cheats by name."""
        return cheats.exploits(task)

    def forget(self) -> None:
        """Run everything anew: what is remembered would look the same twice, whatever the sandbox does."""
        self._runs.forget()

    def secrets(self, task: Task) -> list[str]:
        """Texts that no observation may hold: the repaired functions, and the hidden cases as a test would put them."""
        found = []
        for bug in task.payload["bugs"]:
            right = task.payload["files"][bug["path"]].replace(bug["old"], bug["new"])
            start = right.index(bug["head"])
            found.append(right[start : right.index(bug["new"], start) + len(bug["new"])])
        for function in task.payload["functions"].values():
            for inputs, expected in zip(function["inputs"], function["expected"], strict=True):
                found.append(f"{function['name']}({', '.join(map(repr, inputs))}) == {expected!r}")
        return found

    def unsaid(self, task: Task) -> list[str]:
        """Texts that the prompt may not hold: what repairs the bugs."""
        return [bug["new"] for bug in task.payload["bugs"]]

    async def close(self) -> None:
        """End the sandboxes."""
        await self._pool.close()
