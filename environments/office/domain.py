"""The spreadsheet domain: tasks by family and level, episodes in one pool of sandboxes, judging in another."""

from __future__ import annotations

import base64
import binascii
import random
from collections.abc import Callable, Mapping

from k3rl.environment import Solution
from k3rl.environments.office import policies
from k3rl.environments.office.environment import BOOK, JOB_SECONDS, TOOLS, OfficeEnvironment
from k3rl.environments.office.families import HELDOUT, TRAINED
from k3rl.environments.office.plan import Plan
from k3rl.environments.office.scoring import queries, score
from k3rl.environments.office.tables import Draw
from k3rl.environments.sandbox import JobFailure, SandboxPool, SandboxSpec
from k3rl.errors import UserError
from k3rl.types import SPLITS, Json, Limits, Message, Score, Split, Task

_ONE_THREAD = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
_AGENT = SandboxSpec(
    packages=("openpyxl",), preload=("sheet_jobs.tools",), jobs=("k3rl.environments.office.sheet_jobs",)
)
# The judge's imports (formulas, numpy, scipy) take 80 MB and most of a second: it has a few sandboxes of its own.
_JUDGE = SandboxSpec(
    packages=("openpyxl", "formulas"),
    preload=("sheet_jobs.inspection",),
    jobs=("k3rl.environments.office.sheet_jobs",),
    env=_ONE_THREAD,
    memory=1 << 30,
)


class OfficeDomain:
    """`sandboxes` episodes run at once; `judges` files are judged at once."""

    name = "office"
    levels = 5
    families = tuple(TRAINED)
    heldout = tuple(HELDOUT)

    def __init__(self, *, sandboxes: int = 8, judges: int = 1) -> None:
        self._boxes = SandboxPool(_AGENT, sandboxes)
        self._judges = SandboxPool(_JUDGE, judges)

    def task(self, split: Split, *, seed: int, level: int, index: int, family: str | None = None) -> Task:
        """Families take turns by index unless one is named. Raises UserError for what does not exist."""
        makers = HELDOUT if split == "test_heldout" else TRAINED
        chosen = family or list(makers)[index % len(makers)]
        if split not in SPLITS or not 1 <= level <= self.levels or chosen not in makers:
            raise UserError(
                f"office has no task of split {split!r}, level {level}, family {chosen!r}; levels are 1 to {self.levels}, "
                f"the split's families {', '.join(makers)}"
            )
        rng = random.Random(f"{self.name}/{split}/{seed}/{chosen}/{level}/{index}")
        plan = makers[chosen](Draw(rng), level)
        steps = len(plan.reads) + len(plan.literals) + len(plan.formulas)
        return Task(
            domain=self.name,
            id=f"{self.name}/{split}/{chosen}/{level}/{seed}-{index}",
            split=split,
            family=chosen,
            level=level,
            seed=seed,
            messages=(Message(role="user", content=plan.prompt),),
            tools=TOOLS,
            limits=Limits(turns=steps + 4),
            payload=plan.to_json(),
        )

    async def open(self, task: Task) -> OfficeEnvironment:
        """Put the workbook into a sandbox. Raises SandboxError if none can be had."""
        box = await self._boxes.acquire()
        try:
            return await OfficeEnvironment.start(task, box)
        except BaseException:
            await box.close()
            raise

    async def score(self, task: Task, artifacts: Mapping[str, Json]) -> Score:
        """Parse and recalculate the file in a fresh sandbox, compare with the plan."""
        plan = Plan.from_json(task.payload)
        report = await self._inspect(str(artifacts.get("workbook", "")), {"queries": queries(plan, task.id)})
        return score(plan, report, str(artifacts.get("answer", "")), task.id)

    async def _inspect(self, workbook: str, argument: dict[str, Json]) -> Mapping[str, Json]:
        try:
            data = base64.b64decode(workbook, validate=True)
        except binascii.Error:
            return {"problem": "the artifact is not base64"}
        async with await self._judges.acquire() as box:
            await box.write({BOOK: data})
            try:
                report: Mapping[str, Json] = await box.python(
                    "sheet_jobs.inspection:inspect", {"path": BOOK, **argument}, seconds=JOB_SECONDS
                )
            except JobFailure as failure:  # a file or formula beyond the limits is the agent's doing
                return {"problem": str(failure)}
        return report

    def solve(self, task: Task, variant: int = 0) -> Solution:
        """The reference policy."""
        return policies.play(policies.solution(Plan.from_json(task.payload), variant))

    def exploits(self, task: Task) -> Mapping[str, Callable[[], Solution]]:
        """Cheats by name."""
        return policies.exploits(Plan.from_json(task.payload))

    async def close(self) -> None:
        """End all sandboxes."""
        await self._boxes.close()
        await self._judges.close()
