"""The terminal domain: makes tasks, opens episodes, scores what they left, solves and cheats."""

from __future__ import annotations

import io
import random
import tarfile
from collections.abc import Callable, Mapping

from k3rl.environment import Solution
from k3rl.environments.sandbox import SandboxPool, SandboxSpec
from k3rl.environments.terminal import scoring, scripts
from k3rl.environments.terminal.environment import TerminalEnvironment
from k3rl.environments.terminal.families import HELDOUT, TRAINED
from k3rl.environments.terminal.git_objects import Writer
from k3rl.environments.terminal.puzzle import Draw
from k3rl.errors import ConfigError
from k3rl.types import Json, Limits, Message, Score, Split, Task, Tool

SHELL = Tool(
    name="shell",
    description="Run a command in bash.",
    parameters={"type": "object", "properties": {"command": {"type": "string"}}, "required": ["command"]},
)
FIXED_TIME = "2025-01-01T00:00:00Z"  # git's dates, so that names of commits do not depend on the clock


class Terminal:
    """sandboxes: episodes at once in this process; graders: scorings at once, in containers that no agent has used.

    seconds: for one command; observation_limit: characters; bystanders: files that a task does not speak of (more are
    harder).
    """

    name = "terminal"
    levels = 5
    families = tuple(TRAINED)
    heldout = tuple(HELDOUT)

    def __init__(
        self,
        *,
        sandboxes: int = 32,
        graders: int = 2,
        seconds: float = 5.0,
        observation_limit: int = 800,
        bystanders: int = 2,
    ) -> None:
        if min(sandboxes, graders) < 1 or bystanders < 1 or seconds <= 0:
            raise ConfigError("sandboxes, graders and bystanders must be at least 1, seconds above 0")
        fixed = {"GIT_AUTHOR_DATE": FIXED_TIME, "GIT_COMMITTER_DATE": FIXED_TIME, "PAGER": "cat"}
        self.sandbox_spec = SandboxSpec(env=fixed)
        self._sandboxes = SandboxPool(self.sandbox_spec, sandboxes)
        self._graders = SandboxPool(self.sandbox_spec, graders)
        self._seconds, self._observation_limit, self._bystanders = seconds, observation_limit, bystanders

    def task(self, split: Split, *, seed: int, level: int, index: int, family: str | None = None) -> Task:
        """Task number `index`; without `family`, one is drawn from those of the split."""
        makers = HELDOUT if split == "test_heldout" else TRAINED
        if not 1 <= level <= self.levels:
            raise ConfigError(f"terminal has levels 1 to {self.levels}, not {level}")
        if family is None:
            family = random.Random(f"{self.name}/{split}/{seed}/{level}/{index}").choice(list(makers))
        if family not in makers:
            raise ConfigError(f"terminal has no family {family!r} in {split}; there are {', '.join(makers)}")
        rng = random.Random(f"{self.name}/{split}/{seed}/{family}/{level}/{index}")
        puzzle = makers[family](Draw(rng, self._bystanders), level)
        return Task(
            domain=self.name,
            id=f"{self.name}/{split}/{family}/{level}/{seed}-{index}",
            split=split,
            family=family,
            level=level,
            seed=seed,
            messages=(Message(role="user", content=puzzle.prompt),),
            tools=(SHELL,),
            limits=Limits(turns=8, seconds=60.0, context=1024, turn_tokens=96),
            payload=puzzle.payload(),
        )

    async def open(self, task: Task) -> TerminalEnvironment:
        """A sandbox with the task's files."""
        files, links = _start_files(task.payload)
        box = await self._sandboxes.acquire()
        try:
            await box.write(files, modes=task.payload["modes"], links=links)
        except BaseException:
            await box.close()
            raise
        return TerminalEnvironment(task, box, seconds=self._seconds, observation_limit=self._observation_limit)

    async def score(self, task: Task, artifacts: Mapping[str, Json]) -> Score:
        """Full reward or none; the parts tell what was right."""
        return await scoring.score(task.payload, artifacts, self._graders)

    def solve(self, task: Task, variant: int = 0) -> Solution:
        """One of the task's solutions; after the last of them, the first with a look around before it."""
        return scripts.solve(task, variant)

    def exploits(self, task: Task) -> Mapping[str, Callable[[], Solution]]:
        """Cheats that must earn nothing."""
        return scripts.exploits(task)

    def secrets(self, task: Task) -> list[str]:
        """Texts that no observation may hold: what scripts must print on hidden inputs."""
        return [rerun["output"] for rerun in task.payload["reruns"]]

    async def close(self) -> None:
        """End the containers."""
        await self._sandboxes.close()
        await self._graders.close()


def _start_files(payload: Mapping[str, Json]) -> tuple[dict[str, bytes], dict[str, str]]:
    """Files and links to begin with; archives and repositories are made here, from what the payload says of them."""
    files: dict[str, bytes] = {}
    links: dict[str, str] = {}
    for path, content in payload["before"].items():
        if isinstance(content, str):
            files[path] = content.encode()
        elif "tar" in content:
            files[path] = _tar(content["tar"])
        else:
            links[path] = content["link"]
    if payload["repository"]:
        files |= _repository(payload["repository"])
    return files, links


def _tar(members: Mapping[str, str]) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=tarfile.USTAR_FORMAT) as archive:
        for name, content in members.items():
            info = tarfile.TarInfo(name)
            info.size, info.mode = len(content.encode()), 0o644
            archive.addfile(info, io.BytesIO(content.encode()))
    return buffer.getvalue()


def _repository(description: Mapping[str, Json]) -> dict[str, bytes]:
    writer = Writer()
    main = writer.commit("main", description["files"], description["message"])
    for branch, files in description["branches"].items():
        writer.commit(branch, files, branch, (main,))
    writer.index(description["files"])
    return writer.files
