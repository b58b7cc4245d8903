"""Results by task as JSON lines, kept so that a resumed or a later run compares with them."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterable
from dataclasses import asdict, fields
from pathlib import Path

from k3rl.errors import UserError
from k3rl.evaluation.statistics import TaskResult
from k3rl.run_folder import write_atomically


def results_folder(path: Path) -> Path:
    """Make the folder that results will go to, and try it: an evaluation that cannot be kept should not be played.

    Raises UserError where nothing can be written there.
    """
    try:
        path.mkdir(parents=True, exist_ok=True)
        tempfile.TemporaryFile(dir=path).close()
    except OSError as error:
        raise UserError(
            f"evaluation.output={path}: results cannot be written there ({error.strerror}); name another folder"
        ) from error
    return path


def write_results(path: Path, results: Iterable[TaskResult]) -> None:
    """One object per task and line, with TaskResult's fields; the file is whole or absent.

    Raises InfrastructureError if it cannot be written (a full disk).
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    lines = (json.dumps(asdict(result), allow_nan=False) + "\n" for result in results)
    write_atomically(path, "".join(lines).encode())


def read_results(path: Path) -> list[TaskResult]:
    """What `write_results` wrote. Raises UserError naming the file, and the line that is not a task's result."""
    names = {field.name for field in fields(TaskResult)}
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except OSError as error:
        raise UserError(f"{path}: cannot be read ({error.strerror}); evaluate again") from error
    results = []
    for number, line in enumerate(lines, start=1):
        try:
            row = json.loads(line)
            wrong = names ^ set(row) if isinstance(row, dict) else names
            if wrong:
                raise ValueError(f"keys are missing or unknown: {', '.join(sorted(wrong))}")
            results.append(TaskResult(**{**row, "sampled": tuple(row["sampled"])}))
        except (ValueError, TypeError) as error:
            raise UserError(f"{path}, line {number}: not a task's result ({error}); evaluate again") from error
    return results
