"""From what the judge found in the agent's file, and the final message, to the score."""

from __future__ import annotations

import random
from collections.abc import Mapping
from typing import Any

from k3rl.environments.office import formula as formulas
from k3rl.environments.office.formula import Formula, Inputs, Value
from k3rl.environments.office.plan import Plan
from k3rl.reward import Part, Rubric
from k3rl.rewards.answers import answer_is
from k3rl.rewards.sheets import all_same, changed, same_cell, typed
from k3rl.types import Json, Score


def input_sets(formula: Formula, seed: str) -> list[Inputs]:
    """The inputs to recalculate on: those of the workbook itself first, then the hidden ones."""
    return [{}, *formulas.hidden(formula, random.Random(seed))]


def queries(plan: Plan, seed: str) -> list[dict[str, Any]]:
    """What the judge is asked: each formula cell with its input sets."""
    return [{"cell": where, "sets": input_sets(formula, seed)} for where, formula in plan.formulas.items()]


def expected(plan: Plan, formula: Formula, seed: str) -> list[Value]:
    """The formula's value for each of its input sets, by the judge's own arithmetic."""
    held = {f"{sheet}!{where}": value for sheet, cells in plan.sheets.items() for where, value in cells.items()}
    return [
        formulas.value(formula, lambda r, known={**held, **inputs}: known[r]) for inputs in input_sets(formula, seed)
    ]  # type: ignore[misc]


def score(plan: Plan, report: Mapping[str, Json], answer: str, seed: str) -> Score:
    """1 if every goal is reached in a sound workbook whose other cells are as they were, else 0.

    parts: `readable`, `plain` (nothing a plain workbook does not have), `untouched`, `goal`, and for information
    `progress`, the share of goals reached. report: see sheet_jobs/inspection.py.
    """
    readable = "problem" not in report
    reached = [*_cells_reached(plan, report, seed)] if readable else []
    if plan.answer is not None:
        reached.append(answer_is(answer, plan.answer))
    rubric = Rubric(
        parts=(
            Part(name="readable", reward=lambda _: readable, gate=True),
            Part(name="plain", reward=lambda found: readable and not found["extras"], gate=True),
            Part(name="untouched", reward=lambda found: readable and _untouched(plan, found), gate=True),
            Part(name="goal", reward=lambda _: bool(reached) and all(reached)),
            Part(name="progress", reward=lambda _: sum(reached) / max(1, len(reached)), weight=0.0),
        )
    )
    return rubric.score(report)


def _cells_reached(plan: Plan, report: Mapping[str, Json], seed: str) -> list[bool]:
    after = {f"{sheet}!{where}": held for sheet, cells in report["sheets"] for where, held in cells.items()}
    literal = [
        same_cell(after.get(where), None if value == "" else typed(value)) for where, value in plan.literals.items()
    ]
    computed = [
        all_same(found, expected(plan, formula, seed))
        for formula, found in zip(plan.formulas.values(), report["results"], strict=True)
    ]
    return literal + computed


def _untouched(plan: Plan, report: Mapping[str, Json]) -> bool:
    before = {sheet: {where: typed(value) for where, value in cells.items()} for sheet, cells in plan.sheets.items()}
    return changed(before, dict(report["sheets"])) <= plan.literals.keys() | plan.formulas.keys()
