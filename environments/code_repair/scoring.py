"""Judging a repair: the agent's sources on the pristine tree, in fresh sandboxes, by hidden values and by the suite.

First every function is called with hidden inputs in a process that has no test in reach; what it returns is compared
here, outside. Only then, and only if all was right, the restored suite runs for real: its record can but take away.
"""

from __future__ import annotations

from collections.abc import Mapping

from k3rl.environments.code_repair.package import canonical
from k3rl.environments.code_repair.runs import Runs
from k3rl.environments.code_repair.workspace import SUITE, TREE_BYTES, Record, record
from k3rl.environments.sandbox import JobFailure
from k3rl.reward import Part, Rubric
from k3rl.rewards.tests import PASSED, Passed, compare
from k3rl.types import Json, Score, Task

VALUES = "suite_jobs.runner:values"


def is_source(path: str) -> bool:
    """Whether a file is the agent's to change: modules of the package, and nothing else."""
    return path.startswith("app/")


def patched(pristine: Mapping[str, str], left: Json) -> dict[str, str]:
    """The pristine tree with its sources as the agent left them.

    A file that is no source, or that the tree never had (conftest.py, sitecustomize.py, a .pth, a module that shadows
    another), is not looked at; sources that are together too large are all left as they were.
    """
    agents = left if isinstance(left, dict) else {}
    sources = {path: agents[path] for path in pristine if is_source(path) and isinstance(agents.get(path), str)}
    return dict(pristine) | (sources if sum(map(len, sources.values())) <= TREE_BYTES else {})


def rubric(task: Task) -> Rubric:
    """Hidden values and suite must be right as a whole; the two shares are told beside it."""
    to_pass, to_keep = tuple(task.payload["fail_to_pass"]), tuple(task.payload["pass_to_pass"])
    return Rubric(
        parts=(
            Part(name="hidden", reward=Passed(record="hidden", tests=to_pass + to_keep, whole=True), gate=True),
            Part(name="suite", reward=Passed(record="suite", tests=to_pass + to_keep, whole=True), gate=True),
            Part(name="fail_to_pass", reward=Passed(record="hidden", tests=to_pass), weight=0.0),
            Part(name="pass_to_pass", reward=Passed(record="hidden", tests=to_keep), weight=0.0),
        )
    )


async def judge(task: Task, artifacts: Mapping[str, Json], runs: Runs) -> Score:
    """Run and compare. Code that hangs, dies or floods has failed; only a sandbox that fails by itself raises."""
    files = patched(task.payload["files"], artifacts.get("files"))
    if files == task.payload["files"]:  # nothing was repaired: the bugs are as they were planted and tried
        kept = dict.fromkeys(task.payload["pass_to_pass"], PASSED)
        return rubric(task).score({"hidden": kept, "suite": {}})
    untested = {path: text for path, text in files.items() if is_source(path)}
    functions: Mapping[str, Json] = task.payload["functions"]
    calls = {test: [item["module"], item["name"], item["inputs"]] for test, item in functions.items()}
    expected = {test: [canonical(value) for value in item["expected"]] for test, item in functions.items()}
    answers: dict[str, Json] = {}
    for line in await _lines(runs, VALUES, {"files": untested, "calls": calls}):
        match line:
            case [str(test), list(texts)]:
                answers[test] = texts
    hidden, suite = compare(expected, answers), Record()
    if set(hidden.values()) == {PASSED}:
        suite = record(await _lines(runs, SUITE, files))
    sound = suite.finished and not suite.errors
    return rubric(task).score({"hidden": hidden, "suite": suite.outcomes if sound else {}})


async def _lines(runs: Runs, job: str, argument: Json) -> list[Json]:
    """A job's lines; none if the code in it had to be stopped."""
    try:
        return await runs.lines(job, argument)
    except JobFailure:
        return []
