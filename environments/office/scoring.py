"""From what the judge found in the agent's file, and the final message, to the score."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
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
    return [formulas.value(formula, {**held, **inputs}.__getitem__) for inputs in input_sets(formula, seed)]


def sound(plan: Plan, report: Mapping[str, Json]) -> bool:
    """Whether to calculate at all: a plain workbook, changed in the goal's cells alone, formulas where asked for."""
    if "problem" in report or report["extras"] or not _untouched(plan, report):
        return False
    held = _by_reference(report)
    return all(held.get(where, ["n"])[0] == "f" for where in plan.formulas)


def score(plan: Plan, report: Mapping[str, Json], results: Sequence[Sequence[Json]], answer: str, seed: str) -> Score:
    """1 if every goal is reached in a sound workbook whose other cells are as they were, else 0.

    report: of sheet_jobs/inspection.py. results: of sheet_jobs/recalculate.py for `queries`, empty if not `sound`.
    parts: `readable`, `plain` (nothing a plain workbook does not have), `untouched`, `goal`, and for information
    `progress`, the share of goals reached.
    """
    readable = "problem" not in report
    reached = _reached(plan, report, results, seed) if readable else []
    if plan.answer is not None:
        reached.append(answer_is(answer, plan.answer, rivals=_rivals(plan)))
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


def _reached(plan: Plan, report: Mapping[str, Json], results: Sequence[Sequence[Json]], seed: str) -> list[bool]:
    """For each literal and formula of the goal, whether the file has it."""
    held = _by_reference(report)
    literal = [
        same_cell(held.get(where), None if value == "" else typed(value)) for where, value in plan.literals.items()
    ]
    found = results or [[] for _ in plan.formulas]
    computed = [
        all_same(values, expected(plan, formula, seed))
        for formula, values in zip(plan.formulas.values(), found, strict=True)
    ]
    return literal + computed


def _by_reference(report: Mapping[str, Json]) -> dict[str, Sequence[Json]]:
    return {f"{sheet}!{where}": held for sheet, cells in report["sheets"] for where, held in cells.items()}


def _untouched(plan: Plan, report: Mapping[str, Json]) -> bool:
    allowed = plan.literals.keys() | plan.formulas.keys()
    return changed(contents(plan), dict(report["sheets"])) <= allowed


def contents(plan: Plan) -> dict[str, dict[str, list[Json]]]:
    """The task's workbook as the judge sees it before anything was done."""
    return {sheet: {where: typed(value) for where, value in cells.items()} for sheet, cells in plan.sheets.items()}


def _rivals(plan: Plan) -> frozenset[str]:
    """Words of the workbook that the prompt does not have: to say one of them beside the answer is to hedge."""
    words = {value for cells in plan.sheets.values() for value in cells.values() if isinstance(value, str)}
    return frozenset(word for word in words if word != plan.answer and word not in plan.prompt)
