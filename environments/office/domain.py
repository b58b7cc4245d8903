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
from k3rl.environments.office.scoring import contents, queries, score, sound
from k3rl.environments.office.tables import Draw
from k3rl.environments.office.workbook import build
from k3rl.environments.pools import NUMBERS
from k3rl.environments.sandbox import JobFailure, SandboxPool, SandboxSpec
from k3rl.errors import UserError
from k3rl.types import SPLITS, Json, Limits, Message, Score, Split, Task

_AGENT = SandboxSpec(
    packages=("openpyxl",),
    preload=("sheet_jobs.tools", "sheet_jobs.inspection"),
    jobs=("k3rl.environments.office.sheet_jobs",),
)
# formulas, numpy and scipy take 80 MB and most of a second to import: they get sandboxes of their own.
_CALCULATOR = SandboxSpec(
    packages=("formulas",),
    preload=("sheet_jobs.recalculate",),
    jobs=("k3rl.environments.office.sheet_jobs",),
    env={"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"},
    memory=1 << 30,
)


class OfficeDomain:
    """`sandboxes` episodes run at once; `judges` files are judged at once, in sandboxes that no agent uses."""

    name = "office"
    levels = 5
    families = tuple(TRAINED)
    heldout = tuple(HELDOUT)

    def __init__(self, *, sandboxes: int = 8, judges: int = 1) -> None:
        self.sandbox_spec = _AGENT
        self._boxes = SandboxPool(_AGENT, sandboxes)
        self._judges = SandboxPool(_AGENT, judges)
        self._calculators = SandboxPool(_CALCULATOR, judges)

    def task(self, split: Split, *, seed: int, level: int, index: int, family: str | None = None) -> Task:
        """Families take turns by index unless one is named. Raises UserError for what does not exist."""
        makers = HELDOUT if split == "test_heldout" else TRAINED
        chosen = family or list(makers)[index % len(makers)]
        if split not in SPLITS or not 1 <= level <= self.levels or chosen not in makers:
            raise UserError(
                f"office has no task of split {split!r}, level {level}, family {chosen!r}; levels are 1 to "
                f"{self.levels}, the split's families {', '.join(makers)}"
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
        """Parse the file in a fresh sandbox, calculate its formulas in another, compare with the plan."""
        plan = _plan(task)
        report = await self._inspect(plan, str(artifacts.get("workbook", "")))
        results: list[list[Json]] = []
        if plan.formulas and sound(plan, report):
            results = await self._recalculate(report, queries(plan, task.id))
        return score(plan, report, results, str(artifacts.get("answer", "")), task.id)

    async def _inspect(self, plan: Plan, workbook: str) -> Mapping[str, Json]:
        try:
            data = base64.b64decode(workbook, validate=True)
        except binascii.Error:
            return {"problem": "the artifact is not base64"}
        if data == build(plan.sheets):  # nothing was written: the file is our own
            return {"sheets": list(contents(plan).items()), "extras": []}
        async with await self._judges.acquire() as box:
            await box.write({BOOK: data})
            try:
                report: Mapping[str, Json] = await box.python(
                    "sheet_jobs.inspection:inspect", {"path": BOOK}, seconds=JOB_SECONDS, resident=True
                )
            except JobFailure as failure:  # a file beyond the limits is the agent's doing
                return {"problem": str(failure)}
        return report

    async def _recalculate(self, report: Mapping[str, Json], asked: list[dict[str, Json]]) -> list[list[Json]]:
        async with await self._calculators.acquire() as box:
            try:
                results: list[list[Json]] = await box.python(
                    "sheet_jobs.recalculate:recalculate", {"sheets": report["sheets"], "queries": asked},
                    seconds=JOB_SECONDS,
                )  # fmt: skip
            except JobFailure:  # so is a formula beyond them: it has no value
                return []
        return results

    def solve(self, task: Task, variant: int = 0) -> Solution:
        """The reference policy."""
        return policies.play(policies.solution(_plan(task), variant))

    def exploits(self, task: Task) -> Mapping[str, Callable[[], Solution]]:
        """Cheats by name."""
        return policies.exploits(_plan(task))

    def secrets(self, task: Task) -> list[str]:
        """Texts that no observation may hold: the hidden inputs that a workbook's own values could not be."""
        sets = [inputs for query in queries(_plan(task), task.id) for inputs in query["sets"]]
        numbers = {value for inputs in sets for value in inputs.values() if not isinstance(value, str)}
        return sorted(str(value) for value in numbers if abs(value) > max(NUMBERS) or value != int(value))

    def unsaid(self, task: Task) -> list[str]:
        """Texts that the prompt may not hold: what has to be looked up in the workbook."""
        plan = _plan(task)
        held = {value for contents in plan.sheets.values() for value in contents.values()}
        wanted = [value for value in (plan.answer, *plan.literals.values()) if value in held]
        return [str(value) for value in wanted]

    async def close(self) -> None:
        """End all sandboxes."""
        await self._boxes.close()
        await self._judges.close()
        await self._calculators.close()


def _plan(task: Task) -> Plan:
    return Plan.from_json(task.payload, task.messages[0].content)
