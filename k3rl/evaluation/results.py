"""One task's episodes condensed to a TaskResult, and a list of them kept as JSON lines."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Sequence
from dataclasses import asdict, fields
from pathlib import Path

from k3rl.errors import UserError
from k3rl.evaluation.statistics import TaskResult
from k3rl.types import Scored, Task, Trajectory


def task_result(task: Task, sampled: Sequence[Scored], greedy: Scored | None) -> TaskResult:
    """Condense the episodes of one task. Those without a score (not the policy's fault) are left out of the rewards,
    and of the means: tokens, turns and thinking per episode, and malformed turns per turn."""
    scored = [s for s in sampled if s.score is not None]
    used = [s.trajectory for s in scored] or ([greedy.trajectory] if greedy is not None and greedy.score else [])
    turns = [turn for trajectory in used for turn in trajectory.turns]
    episodes = max(len(used), 1)
    return TaskResult(
        task_id=task.id,
        domain=task.domain,
        split=task.split,
        family=task.family,
        level=task.level,
        tier=str(task.tier),
        sampled=tuple(s.score.reward for s in scored if s.score is not None),
        greedy=greedy.score.reward if greedy is not None and greedy.score is not None else None,
        tokens=sum(_sampled_tokens(t) for t in used) / episodes,
        turns=len(turns) / episodes,
        thinking=sum(turn.thinking_tokens for turn in turns) / episodes,
        malformed=sum(bool(turn.problems) for turn in turns) / max(len(turns), 1),
    )


def write_results(path: Path, results: Iterable[TaskResult]) -> None:
    """One JSON object per task and line, in place only once complete: an evaluation is never half there."""
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(path.name + ".part")
    with part.open("w", encoding="utf-8") as file:
        for result in results:
            file.write(json.dumps(asdict(result), allow_nan=False) + "\n")
        file.flush()
        os.fsync(file.fileno())
    part.replace(path)


def read_results(path: Path) -> list[TaskResult]:
    """What `write_results` wrote. Raises UserError naming the line that is not a task's result."""
    names = {f.name for f in fields(TaskResult)}
    results = []
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except OSError as error:
        raise UserError(f"{path}: cannot be read ({error.strerror}); run `k3rl eval` to make it") from error
    for number, line in enumerate(lines, start=1):
        try:
            row = json.loads(line)
            if set(row) != names:
                raise ValueError(f"keys differ from a result's: {', '.join(sorted(names ^ set(row)))}")
            results.append(TaskResult(**{**row, "sampled": tuple(row["sampled"])}))
        except (ValueError, TypeError) as error:
            raise UserError(f"{path}, line {number}: not a task's result ({error}); evaluate again") from error
    return results


def _sampled_tokens(trajectory: Trajectory) -> int:
    return sum(int(log.mask.sum()) for log in trajectory.logs)
