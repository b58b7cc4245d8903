"""Results by task as JSON values, kept so that a resumed or a later run compares with them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, fields

from k3rl.errors import UserError
from k3rl.evaluation.statistics import TaskResult
from k3rl.types import Json


def to_json(results: Iterable[TaskResult]) -> list[Json]:
    """One object per task, with TaskResult's fields."""
    return [{**asdict(result), "sampled": list(result.sampled)} for result in results]


def from_json(rows: Json, where: str) -> list[TaskResult]:
    """What `to_json` gave. Raises UserError naming `where` (the file) and the row that is not a task's result."""
    names = {field.name for field in fields(TaskResult)}
    if not isinstance(rows, list):
        raise UserError(f"{where}: must be a list of task results, not {type(rows).__name__}; evaluate again")
    results = []
    for number, row in enumerate(rows):
        found = set(row) if isinstance(row, dict) else set()
        if found != names:
            wrong = ", ".join(sorted(names ^ found))
            raise UserError(f"{where}, row {number}: keys are missing or unknown ({wrong}); evaluate again")
        results.append(TaskResult(**{**row, "sampled": tuple(row["sampled"])}))
    return results
