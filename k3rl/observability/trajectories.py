"""Trajectories of one step as a Parquet file, columns as in `k3rl.types.TRAJECTORY_FIELDS`."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from k3rl.chat.tokenizer import well_formed
from k3rl.errors import InfrastructureError, UserError
from k3rl.types import (
    TRAJECTORY_FIELDS,
    TRAJECTORY_SCHEMA,
    Message,
    Score,
    Scored,
    Split,
    StopReason,
    Tier,
    TokenLog,
    Tool,
    ToolCall,
    Turn,
)

_STRING, _DOUBLE = pa.string(), pa.float64()
_MESSAGE = pa.struct([(name, _STRING) for name in Message.__dataclass_fields__])
_TURN = pa.struct(
    [
        ("message", pa.int32()),
        ("start", pa.int32()),
        ("end", pa.int32()),
        ("problems", pa.list_(_STRING)),
        ("thinking_tokens", pa.int32()),
    ]
)
_LOG = {
    "tokens": pa.int32(),
    "mask": pa.bool_(),
    "logprobs": pa.float32(),
    "entropies": pa.float32(),
    "versions": pa.int32(),
}
_TYPES = {
    **dict.fromkeys(TRAJECTORY_FIELDS, _STRING),
    "step": pa.int64(),
    "level": pa.int32(),
    "seed": pa.int64(),
    "sample": pa.int32(),
    "reward": _DOUBLE,
    "parts": pa.map_(_STRING, _DOUBLE),
    "advantage": _DOUBLE,
    "seconds": _DOUBLE,
    "messages": pa.list_(_MESSAGE),
    "turns": pa.list_(_TURN),
    "logs": pa.list_(pa.struct([(name, pa.list_(kind)) for name, kind in _LOG.items()])),
}
_VERSION_KEY = b"k3rl.schema"
SCHEMA = pa.schema(
    [pa.field(name, _TYPES[name], metadata={"meaning": text}) for name, text in TRAJECTORY_FIELDS.items()],
    metadata={_VERSION_KEY: str(TRAJECTORY_SCHEMA)},
)


@dataclass(frozen=True, kw_only=True, slots=True)
class StoredTrajectory:
    """One row of a file: what a `Scored` said, without the task's payload and the routes.

    `prompt` holds the messages given at the start; every turn carries its own message and observation.
    """

    run: str
    step: int
    task_id: str
    domain: str
    split: Split
    family: str
    level: int
    seed: int
    tier: Tier
    sample: int
    stop: StopReason
    error: str
    score: Score | None
    advantage: float | None
    tools: tuple[Tool, ...]
    prompt: tuple[Message, ...]
    turns: tuple[Turn, ...]
    logs: tuple[TokenLog, ...]
    seconds: float

    @property
    def success(self) -> bool:
        return self.score is not None and self.score.reward >= 1.0

    @property
    def messages(self) -> tuple[Message, ...]:
        """The whole conversation in order."""
        return (*self.prompt, *(m for turn in self.turns for m in (turn.message, *turn.observation)))


def write_trajectories(
    path: Path, scored: Sequence[Scored], *, advantages: Sequence[float | None], step: int, run: str
) -> None:
    """Write one file, under a temporary name until it is whole. `advantages` has one number per trajectory.

    Raises InfrastructureError where the file cannot be written.
    """
    rows = [_row(s, a, step, run) for s, a in zip(scored, advantages, strict=True)]
    columns = [
        _logs_column([s.trajectory.logs for s in scored])
        if field.name == "logs"
        else pa.array([row[field.name] for row in rows], field.type)
        for field in SCHEMA
    ]
    part = path.with_name(f".{path.name}.part")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with part.open("wb") as file:
            pq.write_table(pa.Table.from_arrays(columns, schema=SCHEMA), file, compression="zstd")
            file.flush()
            os.fsync(file.fileno())
        part.replace(path)
    except OSError as error:
        part.unlink(missing_ok=True)
        raise InfrastructureError(f"{path}: trajectories cannot be written ({error}); make room") from error


def read_trajectories(path: Path) -> list[StoredTrajectory]:
    """Every row of a file. Raises UserError where it is damaged, no trajectory file, or of a later schema."""
    table = read_table(path)
    logs = _read_logs(table.column("logs"))
    rows = table.drop_columns(["logs"]).to_pylist()
    return [_stored(row, row_logs) for row, row_logs in zip(rows, logs, strict=True)]


def read_table(path: Path, columns: Sequence[str] | None = None) -> pa.Table:
    """The file as a table, or some of its columns, after a look at its schema version."""
    try:
        with pq.ParquetFile(path) as file:
            version = (file.schema_arrow.metadata or {}).get(_VERSION_KEY)
            if version is None:
                raise UserError(f"{path}: a Parquet file, but not of trajectories (no k3rl.schema in its metadata)")
            if int(version) > TRAJECTORY_SCHEMA:
                raise UserError(
                    f"{path}: schema {int(version)}, this k3rl reads up to {TRAJECTORY_SCHEMA}; use a newer k3rl"
                )
            return file.read(columns=None if columns is None else list(columns))
    except (OSError, pa.ArrowInvalid) as error:
        raise UserError(f"{path}: cannot be read as Parquet ({error}); was it cut short?") from error


def trajectory_files(path: Path) -> list[Path]:
    """The trajectory files at `path`: itself, or a folder's `step-*.parquet` in order. Empty for other data."""
    files = [file for _, file in step_files(path)] if path.is_dir() else [path] if path.suffix == ".parquet" else []
    return files if files and _VERSION_KEY in _metadata(files[0]) else []


def _metadata(file: Path) -> Mapping[bytes, bytes]:
    try:
        return pq.read_schema(file).metadata or {}
    except (OSError, pa.ArrowInvalid) as error:
        raise UserError(f"{file}: cannot be read as Parquet ({error}); was it cut short?") from error


def step_files(folder: Path) -> Iterator[tuple[int, Path]]:
    """(step, file) of a run's `step-000012.parquet` files, in order of steps."""
    found = ((re.fullmatch(r"step-(\d+)\.parquet", file.name), file) for file in folder.iterdir())
    yield from sorted((int(match[1]), file) for match, file in found if match)


def truncate_trajectories(folder: Path, step: int) -> None:
    """Remove the files of steps after `step`, and half-written ones, as a run does that resumes there."""
    for number, file in step_files(folder):
        if number > step:
            file.unlink()
    for part in folder.glob(".step-*.parquet.part"):
        part.unlink()


def _row(scored: Scored, advantage: float | None, step: int, run: str) -> dict[str, Any]:
    trajectory, score = scored.trajectory, scored.score
    task = trajectory.task
    messages, turns = list(task.messages), []
    for turn in trajectory.turns:
        turns.append(
            {
                "message": len(messages),
                "start": turn.start,
                "end": turn.end,
                "problems": [well_formed(problem) for problem in turn.problems],
                "thinking_tokens": turn.thinking_tokens,
            }
        )
        messages += (turn.message, *turn.observation)
    return {
        "run": run,
        "step": step,
        "task_id": task.id,
        "domain": task.domain,
        "split": task.split,
        "family": task.family,
        "level": task.level,
        "seed": task.seed,
        "tier": str(task.tier),
        "sample": trajectory.sample,
        "stop": str(trajectory.stop),
        "error": well_formed(trajectory.error),
        "reward": score.reward if score else None,
        "parts": list(score.parts.items()) if score else [],
        "advantage": advantage,
        "tools": json.dumps([asdict(tool) for tool in task.tools]),
        "messages": [_message_row(message) for message in messages],
        "turns": turns,
        "seconds": trajectory.seconds,
    }


def _message_row(message: Message) -> dict[str, str]:
    """Texts as tokens carry them: what an agent's program prints may hold what no file can (lone surrogates)."""
    calls = [{"id": call.id, "name": call.name, "arguments": dict(call.arguments)} for call in message.tool_calls]
    return {
        "role": message.role,
        "content": well_formed(message.content),
        "reasoning": well_formed(message.reasoning),
        "tool_calls": json.dumps(calls) if calls else "",
        "name": well_formed(message.name),
        "tool_call_id": well_formed(message.tool_call_id),
    }


def _logs_column(logs: Sequence[Sequence[TokenLog]]) -> pa.ListArray:
    """Built from whole arrays: token by token through Python would cost seconds a step."""
    flat = [log for row in logs for log in row]
    offsets = _offsets([len(log.tokens) for log in flat])
    children = []
    for name, kind in _LOG.items():
        values = np.concatenate([np.asarray(getattr(log, name)) for log in flat] or [np.empty(0)])
        children.append(pa.ListArray.from_arrays(offsets, pa.array(values).cast(kind)))
    struct = pa.StructArray.from_arrays(children, names=list(_LOG))
    return pa.ListArray.from_arrays(_offsets([len(row) for row in logs]), struct)


def _offsets(lengths: Sequence[int]) -> pa.Array:
    return pa.array(np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32))


def _read_logs(column: pa.ChunkedArray) -> list[tuple[TokenLog, ...]]:
    def log(value: pa.StructScalar) -> TokenLog:
        arrays: dict[str, Any] = {name: _numpy(value[name], kind) for name, kind in _LOG.items()}
        return TokenLog(**arrays)

    return [tuple(log(value) for value in row.values) for row in column]


def _numpy(value: pa.ListScalar, kind: pa.DataType) -> NDArray[Any]:
    return np.array(value.values.to_numpy(zero_copy_only=False), dtype=kind.to_pandas_dtype())


def _stored(row: Mapping[str, Any], logs: tuple[TokenLog, ...]) -> StoredTrajectory:
    messages = [_message(m) for m in row["messages"]]
    bounds = [*(turn["message"] for turn in row["turns"]), len(messages)]
    turns = tuple(
        Turn(
            start=turn["start"],
            end=turn["end"],
            message=messages[place],
            problems=tuple(turn["problems"]),
            observation=tuple(messages[place + 1 : following]),
            thinking_tokens=turn["thinking_tokens"],
        )
        for turn, (place, following) in zip(row["turns"], pairwise(bounds), strict=True)
    )
    same = ("run", "step", "task_id", "domain", "split", "family", "level", "seed", "sample", "error", "seconds")
    return StoredTrajectory(
        **{name: row[name] for name in same},
        tier=Tier(row["tier"]),
        stop=StopReason(row["stop"]),
        score=None if row["reward"] is None else Score(reward=row["reward"], parts=dict(row["parts"])),
        advantage=row["advantage"],
        tools=tuple(Tool(**tool) for tool in json.loads(row["tools"])),
        prompt=tuple(messages[: bounds[0]]),
        turns=turns,
        logs=logs,
    )


def _message(row: Mapping[str, str]) -> Message:
    calls = json.loads(row["tool_calls"]) if row["tool_calls"] else []
    texts: dict[str, Any] = {**row, "tool_calls": tuple(ToolCall(**call) for call in calls)}
    return Message(**texts)
