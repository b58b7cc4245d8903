"""Whole episodes in real sandboxes: the reference policy earns 1, everything else 0."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import AsyncIterator, Mapping
from typing import Any

import pytest
import pytest_asyncio

from k3rl.environment import Solution
from k3rl.environments.code_repair import CodeRepair
from k3rl.environments.code_repair.domain import LEVELS
from k3rl.environments.code_repair.runs import Runs
from k3rl.environments.code_repair.scoring import VALUES
from k3rl.environments.code_repair.solver import VARIANTS, call
from k3rl.environments.sandbox import JobFailure, SandboxPool
from k3rl.types import Json, Message, Score, Task

pytestmark = [
    pytest.mark.asyncio(loop_scope="module"),
    pytest.mark.skipif(shutil.which("bwrap") is None, reason="bubblewrap is not installed"),
]
DONE = Message(role="assistant", content="done")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def domain() -> AsyncIterator[CodeRepair]:
    made = CodeRepair(sandboxes=1)
    yield made
    await made.close()


async def play(domain: CodeRepair, task: Task, policy: Solution) -> tuple[Score, list[str], Mapping[str, Json]]:
    """Score, all observations, and what was left."""
    environment = await domain.open(task)
    seen: list[str] = []
    try:
        result = await environment.step(await anext(policy))
        while not result.terminated:
            seen += [message.content for message in result.messages]
            result = await environment.step(await policy.asend(result))
        left = await environment.artifacts()
        return await domain.score(task, left), seen, left
    finally:
        await environment.close()


async def scripted(*messages: Message) -> Solution:
    for message in messages:
        yield message


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("split", ["train", "validation", "test", "test_heldout"])
async def test_the_reference_policy_earns_one(domain: CodeRepair, split: Any, level: int) -> None:
    families = domain.heldout if split == "test_heldout" else domain.families
    for index, family in enumerate(families):
        task = domain.task(split, seed=11, level=level, index=index, family=family)
        score, seen, _ = await play(domain, task, domain.solve(task, variant=index + level))
        assert score.reward == 1.0, (task.id, score, seen)
        assert not any(text.startswith("error") for text in seen)


async def test_variants_are_different_ways(domain: CodeRepair) -> None:
    task = domain.task("train", seed=11, level=5, index=0)
    ways = set()
    for variant in range(VARIANTS):
        messages = [message async for message in domain.solve(task, variant)]
        assert len(messages) <= task.limits.turns
        ways.add(repr(messages))
    assert len(ways) == VARIANTS


@pytest.mark.parametrize("level", LEVELS)
async def test_cheats_earn_nothing(domain: CodeRepair, level: int) -> None:
    for offset in (0, 4):  # two families at each level, each of the eight at one or more
        task = domain.task("train", seed=12, level=level, index=level + offset)
        for name, policy in domain.exploits(task).items():
            score, seen, _ = await play(domain, task, policy())
            assert score.reward == 0.0, (task.id, name, score, seen)


async def test_a_repair_that_breaks_something_else_earns_nothing(domain: CodeRepair) -> None:
    task = domain.task("train", seed=13, level=3, index=0)
    bug, kept = task.payload["bugs"][0], task.payload["pass_to_pass"][0]
    item = task.payload["functions"][kept]
    path = item["module"].replace(".", "/") + ".py"
    files = dict(task.payload["files"])
    files[bug["path"]] = files[bug["path"]].replace(bug["old"], bug["new"])
    assert (await domain.score(task, {"files": files})).reward == 1.0
    files[path] += f"\n\ndef {item['name']}(*arguments):\n    return None\n"
    score = await domain.score(task, {"files": files})
    assert (score.reward, score.parts["fail_to_pass"]) == (0.0, 1.0)
    assert score.parts["pass_to_pass"] == pytest.approx(2 / 3)


async def test_half_a_repair_earns_nothing_but_is_told(domain: CodeRepair) -> None:
    task = domain.task("train", seed=13, level=5, index=1)
    bug = task.payload["bugs"][1]
    score, seen, _ = await play(
        domain, task, scripted(call("edit", path=bug["path"], old=bug["old"], new=bug["new"]), call("test"), DONE)
    )
    assert (score.reward, score.parts["fail_to_pass"], score.parts["pass_to_pass"]) == (0.0, 0.5, 1.0)
    assert seen[1].splitlines()[-1] == "1 failed, 5 passed"
    assert seen[1].startswith(task.payload["bugs"][0]["test"] + ": assert ")


async def test_same_task_same_observations(domain: CodeRepair) -> None:
    task = domain.task("train", seed=14, level=5, index=2)
    policies = {"solve": lambda: domain.solve(task, 1), **domain.exploits(task)}
    for name, policy in policies.items():
        first = await play(domain, task, policy())
        domain.forget()
        assert first == await play(domain, task, policy()), name


async def test_only_sources_of_the_repository_count(domain: CodeRepair) -> None:
    task = domain.task("train", seed=15, level=2, index=0)
    bug = task.payload["bugs"][0]
    passing = "def pytest_pyfunc_call(pyfuncitem):\n    return True\n"
    test = bug["test"].split("::")[0]
    files = dict(task.payload["files"]) | {"conftest.py": passing, "tests/conftest.py": passing, test: "", "x.pth": "1"}
    assert (await domain.score(task, {"files": files})).reward == 0.0
    files[bug["path"]] = files[bug["path"]].replace(bug["old"], bug["new"])
    files |= {"pytest.py": "raise SystemExit", "app/new.py": "\0", "../../etc/x": "", "/w/repo/y.py": ""}
    assert (await domain.score(task, {"files": files})).reward == 1.0


@pytest.mark.parametrize("left", [{}, {"files": None}, {"files": [1]}, {"files": {"app/__init__.py": 7}}])
async def test_empty_or_odd_artifacts_are_the_pristine_tree(domain: CodeRepair, left: Mapping[str, Json]) -> None:
    score = await domain.score(domain.task("train", seed=15, level=2, index=1), left)
    assert (score.reward, score.parts["fail_to_pass"], score.parts["pass_to_pass"]) == (0.0, 0.0, 1.0)


@pytest.mark.parametrize(
    "code",
    [
        "while True: pass",
        "import os\nwhile True: os.fork()",
        "[bytearray(1 << 20) for _ in range(1 << 20)]",
        "import os\nopen('/w/fill', 'wb').write(bytes(1 << 30))",
        "import os\nos.chmod('/w/repo', 0)\nos.chmod('/w', 0)",
        "import os\nos.close(3)\nos.kill(os.getppid(), 2)",
        "import os\nos.set_blocking(3, False)\nos.write(3, b'x' * (1 << 20))\nos._exit(3)",
        "\ud800",
    ],
)
async def test_hostile_code_is_a_failure_not_a_fault(domain: CodeRepair, code: str) -> None:
    task = domain.task("train", seed=16, level=1, index=0)
    bug = task.payload["bugs"][0]
    files = dict(task.payload["files"])
    files[bug["path"]] = f"{code}\n{files[bug['path']]}"
    assert (await domain.score(task, {"files": files})).reward == 0.0
    files = dict(task.payload["files"])
    files[bug["path"]] = files[bug["path"]].replace(bug["old"], bug["new"])
    domain.forget()
    assert (await domain.score(task, {"files": files})).reward == 1.0  # and the next one is not disturbed


async def test_right_values_need_the_real_suite_too(domain: CodeRepair) -> None:
    """Code that behaves only where no test is in sight (and so gives right values alone) fails the suite."""
    task = domain.task("train", seed=16, level=1, index=1)
    bug = task.payload["bugs"][0]
    files = dict(task.payload["files"])
    right = files[bug["path"]].replace(bug["old"], bug["new"])
    files[bug["path"]] = f"import os\nassert not os.path.exists('/w/repo/tests')\n{right}"
    score = await domain.score(task, {"files": files})
    assert (score.reward, score.parts["hidden"], score.parts["suite"]) == (0.0, 1.0, 0.0)


async def test_the_same_run_is_made_once_for_all_who_ask_at_once() -> None:
    async with SandboxPool(CodeRepair().sandbox_spec, 2) as pool:
        runs = Runs(pool, seconds=1.0)
        stamp = "from time import perf_counter_ns\n\n\ndef now():\n    return perf_counter_ns()\n"
        argument = {"files": {"app/clock.py": stamp}, "calls": {"now": ["app.clock", "now", [[]]]}}
        first, *others = await asyncio.gather(*(runs.lines(VALUES, argument) for _ in range(3)))
        assert first[0][0] == "now"
        assert others == [first, first]
        runs.forget()
        again = await runs.lines(VALUES, argument)
        assert again != first  # the clock went on
        argument["files"]["app/clock.py"] = "while True: pass\n"
        for _ in range(2):  # what did not end may end another time
            with pytest.raises(JobFailure, match="out of"):
                await runs.lines(VALUES, argument)


async def test_tools(domain: CodeRepair) -> None:
    task = domain.task("train", seed=17, level=4, index=0)
    path = task.payload["bugs"][0]["path"]
    environment = await domain.open(task)

    async def answer(name: str, **arguments: Any) -> str:
        return (await environment.step(call(name, **arguments))).messages[0].content

    assert await answer("view", path=path) == task.payload["files"][path].rstrip("\n")
    assert await answer("view", path=f"./{path}") == await answer("view", path=path)
    assert await answer("view", path=".") == "app\ntests"
    assert (await answer("view", path="app")).splitlines()[0] == "__init__.py"
    assert await answer("view", path="../etc/passwd") == "error: no file ../etc/passwd"
    assert await answer("edit", path=path, old="no such text", new="") == f"error: old is in {path} 0 times, not once"
    assert await answer("edit", path=path, old='"""', new="") == f"error: old is in {path} 4 times, not once"
    assert await answer("edit", path="app/none.py", old="a", new="b") == "error: no file app/none.py"
    assert "larger" in await answer("edit", path=path, old=task.payload["files"][path], new="x" * 70000)
    assert (await answer("edit", path=path, old=3, new="")).startswith("error: old: 3 is not of type")
    assert (await answer("shell", command="ls")).startswith("error: no tool 'shell'")
    assert (await environment.artifacts())["files"] == task.payload["files"]
    assert (await answer("test")).splitlines()[-1] == "1 failed, 5 passed"
    assert await answer("edit", path=path, old=task.payload["files"][path], new="def\n") == "ok"
    assert "SyntaxError" in await answer("test")
    await environment.close()
    await environment.close()
