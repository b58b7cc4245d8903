"""The check tells a sound domain from broken ones: each kind of fault turns exactly its own rows."""

import asyncio
import random
import socket
import subprocess
import sys
from collections.abc import Callable, Mapping

import pytest

from k3rl.environment import Solution
from k3rl.environments.check import run_check
from k3rl.environments.check.play import in_parallel, sample
from k3rl.environments.tool_environment import ToolEnvironment
from k3rl.errors import EnvironmentFault, SandboxError
from k3rl.types import Json, Limits, Message, Score, Split, Task, Tool, ToolCall

COUNT = Tool(name="count", parameters={"type": "object", "properties": {"to": {"type": "integer"}}, "required": ["to"]})


class Counting(ToolEnvironment):
    """Count up to a number, one call for each."""

    def __init__(self, task: Task, domain: "Sound") -> None:
        super().__init__(task)
        self._domain, self.reached = domain, 0

    async def tool_count(self, to: int) -> str:
        if to == self.reached + 1:
            self.reached = to
        return self._domain.say(self.task, self.reached)

    async def artifacts(self) -> Mapping[str, Json]:
        return {"reached": self.reached}


class Sound:
    """A level is the number to count to."""

    name = "counting"
    levels = 3
    families: tuple[str, ...] = ("up", "on")
    heldout: tuple[str, ...] = ("far",)

    def task(self, split: Split, *, seed: int, level: int, index: int, family: str | None = None) -> Task:
        name = family or "up"
        return Task(
            domain="counting",
            id=f"counting/{split}/{name}/{level}/{seed}-{index}",
            split=split,
            family=name,
            level=level,
            seed=seed,
            messages=(Message(role="user", content=f"count to {level}"),),
            tools=(COUNT,),
            limits=Limits(turns=8),
        )

    async def open(self, task: Task) -> Counting:
        return Counting(task, self)

    async def score(self, task: Task, artifacts: Mapping[str, Json]) -> Score:
        return Score(reward=float(artifacts["reached"] == task.level))

    def solve(self, task: Task, variant: int = 0) -> Solution:
        return self.count(*range(1, task.level + 1))

    def exploits(self, task: Task) -> Mapping[str, Callable[[], Solution]]:
        return {"jump": lambda: self.count(task.level + 1)}

    async def count(self, *numbers: int) -> Solution:
        for number in numbers:
            call = ToolCall(id="count:1", name="count", arguments={"to": number})
            yield Message(role="assistant", tool_calls=(call,))
        yield Message(role="assistant", content="done")

    def say(self, task: Task, reached: int) -> str:
        return f"at {reached}"

    def secrets(self, task: Task) -> list[str]:
        return ["the grader's key"]

    async def close(self) -> None:
        pass


class Unsolvable(Sound):
    async def score(self, task: Task, artifacts: Mapping[str, Json]) -> Score:
        return Score(reward=0.9 * (artifacts["reached"] == task.level))


class Generous(Sound):
    async def score(self, task: Task, artifacts: Mapping[str, Json]) -> Score:
        return Score(reward=1.0)


class Cheatable(Sound):
    def exploits(self, task: Task) -> Mapping[str, Callable[[], Solution]]:
        return {"jump": lambda: self.solve(task)}


class Moody(Sound):
    def say(self, task: Task, reached: int) -> str:
        return f"at {reached} {random.random()}"


class Talkative(Sound):
    def say(self, task: Task, reached: int) -> str:
        return f"at {reached} of {socket.gethostname()} {sys.prefix}"


class Leaking(Sound):
    def say(self, task: Task, reached: int) -> str:
        return f"at {reached}, the grader's key"


class Secretless(Sound):
    def secrets(self, task: Task) -> list[str]:
        return []


class Falling(Sound):
    def solve(self, task: Task, variant: int = 0) -> Solution:
        return self.count(*[0] * (6 - 2 * task.level), *range(1, task.level + 1))


class Littering(Sound):
    child: subprocess.Popen[bytes] | None = None

    async def open(self, task: Task) -> Counting:
        self.child = self.child or subprocess.Popen(["sleep", "60"])
        return await super().open(task)


class Hanging(Sound):
    async def score(self, task: Task, artifacts: Mapping[str, Json]) -> Score:
        await asyncio.Event().wait()
        raise AssertionError("unreachable")


class Held(Counting):
    """Counts for nothing once its process is dead."""

    def __init__(self, task: Task, domain: Sound) -> None:
        super().__init__(task, domain)
        self._child = subprocess.Popen(["cat"], stdin=subprocess.PIPE, stdout=subprocess.PIPE)

    def alive(self) -> bool:
        assert self._child.stdin is not None
        assert self._child.stdout is not None
        try:
            self._child.stdin.write(b"?\n")
            self._child.stdin.flush()
        except BrokenPipeError:
            return False
        return self._child.stdout.readline() == b"?\n"

    async def artifacts(self) -> Mapping[str, Json]:
        return {"reached": self.reached if self.alive() else 0}

    async def close(self) -> None:
        self._child.kill()
        self._child.communicate()


class Telling(Held):
    async def artifacts(self) -> Mapping[str, Json]:
        if not self.alive():
            raise SandboxError("the process is dead")
        return {"reached": self.reached}


class Crashing(Held):
    async def artifacts(self) -> Mapping[str, Json]:
        return {"reached": self.reached // self.alive()}


class WithProcesses(Sound):
    def __init__(self, environment: type[Held]) -> None:
        self._environment = environment

    async def open(self, task: Task) -> Counting:
        return self._environment(task, self)


@pytest.mark.parametrize(
    ("environment", "outcome", "ok"),
    [
        (Telling, "SandboxError, then solved: True", True),
        (Held, "scored 0, then solved: True", False),
        (Crashing, "ZeroDivisionError instead of InfrastructureError, then solved: True", False),
    ],
)
async def test_a_death_must_be_told_as_infrastructure(environment: type[Held], outcome: str, ok: bool) -> None:
    rows = {row.name: row for row in await run_check(WithProcesses(environment), seeds=24)}
    assert (rows["after a kill"].value, rows["after a kill"].ok) == (outcome, ok)
    assert {name for name, row in rows.items() if not row.ok} - {"after a kill"} == {"isolation"}


async def broken_rows(domain: Sound) -> set[str]:
    return {row.name for row in await run_check(domain, seeds=24) if not row.ok}


@pytest.mark.parametrize(
    ("domain", "rows"),
    [
        (Sound(), set()),
        (Unsolvable(), {"oracle", "after a kill", "after a cancelled step"}),
        (Generous(), {"no-op", "random calls", "exploit: jump"}),
        (Cheatable(), {"exploit: jump"}),
        (Moody(), {"determinism"}),
        (Talkative(), {"host unseen"}),
        (Leaking(), {"leaks"}),
        (Secretless(), {"leaks"}),
        (Falling(), {"level 2", "level 3"}),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, Sound) else "",
)
async def test_each_fault_is_found(domain: Sound, rows: set[str]) -> None:
    # This domain runs nothing of anybody's, so it has no sandbox to be probed: that one row says so.
    assert await broken_rows(domain) == rows | {"isolation"}


async def test_a_domain_that_hangs_ends_the_check(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("k3rl.environments.check.play.CALL_SECONDS", 0.05)
    with pytest.raises(EnvironmentFault, match=r"counting/train.*: score did not return within 0\.05 s"):
        await run_check(Hanging(), seeds=8)


async def test_processes_that_are_left_are_found() -> None:
    domain = Littering()
    broken = await broken_rows(domain)
    assert domain.child is not None
    domain.child.wait(10)  # the check killed it, but nobody collected it
    assert broken == {"isolation", "after close"}


async def test_the_weak_policy_must_find_higher_levels_harder() -> None:
    async def falling(task: Task) -> float:
        return float(task.level == 1)

    async def rising(task: Task) -> float:
        return float(task.level == 3)

    async def even(task: Task) -> float:
        return 1.0

    def tokens(task: Task, steps: object) -> int:
        return 100 * task.level

    rows = {row.name: row for row in await run_check(Sound(), seeds=24, policy=falling, tokens=tokens)}
    assert rows["level 2"].value == "3.00 turns, 200 tokens, weak policy 0%"
    assert all(rows[f"level {level}"].ok for level in (1, 2, 3))
    rows = {row.name: row for row in await run_check(Sound(), seeds=24, policy=rising)}
    assert rows["level 3"].value == "4.00 turns, weak policy 100%: no harder than the lowest level"
    assert [rows[f"level {level}"].ok for level in (1, 2, 3)] == [True, True, False]
    rows = {row.name: row for row in await run_check(Sound(), seeds=24, policy=even)}
    assert [rows[f"level {level}"].ok for level in (1, 2, 3)] == [True, True, False]


def test_samples_spread_over_splits_families_and_levels() -> None:
    tasks = sample(Sound(), 21, seed=1)  # 3 levels x (3 splits x 2 families + 1)
    assert len({(task.split, task.family, task.level) for task in tasks}) == 21
    assert len({task.level for task in tasks[:6]}) == 3
    assert len({task.id for task in sample(Sound(), 50, seed=1)}) == 50


async def test_progress_is_told() -> None:
    told: list[tuple[str, int, int]] = []
    await run_check(Sound(), seeds=24, progress=lambda *what: told.append(what))
    assert [done for name, done, total in told if name == "oracle"] == list(range(1, 25))
    assert ("determinism", 8, 8) in told


async def test_results_keep_their_order_however_long_each_takes() -> None:
    async def work(number: int) -> int:
        await asyncio.sleep(0.001 * (5 - number))
        return number

    assert await in_parallel(range(5), work, lambda: None) == [0, 1, 2, 3, 4]


async def test_the_first_failure_comes_out_as_it_is() -> None:
    async def work(number: int) -> int:
        if number == 2:
            raise SandboxError("bwrap is not installed")
        await asyncio.sleep(0)
        return number

    with pytest.raises(SandboxError, match="bwrap is not installed"):
        await in_parallel(range(5), work, lambda: None)
