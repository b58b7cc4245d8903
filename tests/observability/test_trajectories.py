"""Round trip of trajectories through Parquet, compared field by field with what was written."""

from __future__ import annotations

import json
from dataclasses import fields, replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from k3rl.errors import InfrastructureError, UserError
from k3rl.observability.trajectories import (
    SCHEMA,
    read_table,
    read_trajectories,
    step_files,
    truncate_trajectories,
    write_trajectories,
)
from k3rl.types import (
    TRAJECTORY_FIELDS,
    TRAJECTORY_SCHEMA,
    Message,
    Score,
    Scored,
    StopReason,
    Task,
    Tier,
    TokenLog,
    Tool,
    ToolCall,
    Trajectory,
    Turn,
)

TASK = Task(
    domain="terminal",
    id="terminal/train/move/2/7-0",
    split="train",
    family="move",
    level=2,
    seed=2**40 + 7,
    messages=(
        Message(role="system", content="short"),
        Message(role="user", content="move ä to b"),
        Message(role="assistant", content="which?"),
        Message(role="user", content="both"),
    ),
    tools=(Tool(name="shell", description="run", parameters={"type": "object", "properties": {"command": {}}}),),
    tier=Tier.HIGH,
    payload={"secret": 1},
)
CALL = ToolCall(id="shell:1", name="shell", arguments={"command": "mv a b", "deep": [1, {"x": None}]})
TURNS = (
    Turn(
        start=10,
        end=14,
        message=Message(role="assistant", reasoning="hm", tool_calls=(CALL, replace(CALL, id="shell:2"))),
        problems=("no such tool",),
        observation=(
            Message(role="tool", content="ok", name="shell", tool_call_id="shell:1"),
            Message(role="tool", content="", name="shell", tool_call_id="shell:2"),
        ),
        thinking_tokens=3,
    ),
    Turn(start=20, end=22, message=Message(role="assistant", content="done")),
)


def token_log(length: int, seed: int) -> TokenLog:
    rng = np.random.default_rng(seed)
    mask = rng.random(length) < 0.5
    return TokenLog(
        tokens=rng.integers(0, 2**20, length, dtype=np.int32),
        mask=mask,
        logprobs=np.where(mask, -rng.random(length), 0).astype(np.float32),
        entropies=np.where(mask, rng.random(length), 0).astype(np.float32),
        versions=np.where(mask, 3, -1).astype(np.int32),
    )


def scored(sample: int, logs: tuple[TokenLog, ...], *, score: Score | None = Score(reward=1.0)) -> Scored:  # noqa: B008
    stop = StopReason.ENDED if score else StopReason.INFRASTRUCTURE
    error = "" if score else "the sandbox died"
    trajectory = Trajectory(
        task=TASK, sample=sample, logs=logs, turns=TURNS if logs else (), stop=stop, seconds=0.25, error=error
    )
    return Scored(trajectory=trajectory, score=score)


def same_log(one: TokenLog, other: TokenLog) -> bool:
    names = ("tokens", "mask", "logprobs", "entropies", "versions")
    pairs = [(getattr(one, name), getattr(other, name)) for name in names]
    return all(a.dtype == b.dtype and a.tobytes() == b.tobytes() for a, b in pairs)


def test_round_trip_keeps_every_field(tmp_path: Path) -> None:
    written = [
        scored(0, (token_log(30, 1),), score=Score(reward=0.25, parts={"tree": 0.25, "clean": 1.0})),
        scored(1, (token_log(22, 2), token_log(1, 3))),
        scored(2, (), score=None),
    ]
    file = tmp_path / "trajectories" / "step-000012.parquet"
    write_trajectories(file, written, advantages=[-0.5, 1.5, None], step=12, run="quick")
    assert [f.name for f in file.parent.iterdir()] == [file.name]
    stored = read_trajectories(file)
    for row, original, advantage in zip(stored, written, (-0.5, 1.5, None), strict=True):
        trajectory = original.trajectory
        assert (row.run, row.step, row.advantage, row.score) == ("quick", 12, advantage, original.score)
        for name in ("domain", "split", "family", "level", "seed", "tier", "tools"):
            assert getattr(row, name) == getattr(TASK, name)
        for name in ("sample", "stop", "error", "seconds", "turns"):
            assert getattr(row, name) == getattr(trajectory, name)
        assert (row.task_id, row.prompt) == (TASK.id, TASK.messages)
        assert len(row.logs) == len(trajectory.logs)
        assert all(same_log(a, b) for a, b in zip(row.logs, trajectory.logs, strict=True))
    assert [m.content for m in stored[0].messages[-4:]] == ["", "ok", "", "done"]


def test_what_no_file_can_hold_is_replaced_and_costs_no_run(tmp_path: Path) -> None:
    lone = Message(role="tool", content="a\ud800b", name="shell\udfff", tool_call_id="shell:1")
    message = Message(role="assistant", content="\ud83d\ude00", reasoning="\ud800")
    turn = Turn(start=0, end=2, message=message, problems=("\ud800",), observation=(lone,))
    broken = replace(scored(0, (token_log(2, 1),)).trajectory, turns=(turn,), error="\udcff")
    file = tmp_path / "step-000001.parquet"
    write_trajectories(file, [Scored(trajectory=broken, score=None)], advantages=[None], step=1, run="x")
    (row,) = read_trajectories(file)
    assert (row.turns[0].problems, row.error) == (("\ufffd",), "\ufffd")
    assert (row.turns[0].message.content, row.turns[0].message.reasoning) == ("\U0001f600", "\ufffd")
    assert row.turns[0].observation == (replace(lone, content="a\ufffdb", name="shell\ufffd"),)


@settings(max_examples=25, deadline=None)
@given(lengths=st.lists(st.lists(st.integers(0, 40), max_size=3), max_size=6), seed=st.integers(0, 99))
def test_round_trip_of_ragged_logs(
    tmp_path_factory: pytest.TempPathFactory, lengths: list[list[int]], seed: int
) -> None:
    written = [
        scored(i, tuple(token_log(length, seed + j) for j, length in enumerate(row))) for i, row in enumerate(lengths)
    ]
    file = tmp_path_factory.mktemp("ragged") / "step-000001.parquet"
    write_trajectories(file, written, advantages=[0.0] * len(written), step=1, run="r")
    for row, original in zip(read_trajectories(file), written, strict=True):
        assert [len(log.tokens) for log in row.logs] == [len(log.tokens) for log in original.trajectory.logs]
        assert all(same_log(a, b) for a, b in zip(row.logs, original.trajectory.logs, strict=True))


def test_columns_are_the_documented_ones(tmp_path: Path) -> None:
    file = tmp_path / "step-000001.parquet"
    write_trajectories(file, [scored(0, (token_log(4, 0),))], advantages=[0.0], step=1, run="r")
    table = pq.read_table(file)  # another reader, without this package
    assert table.column_names == list(TRAJECTORY_FIELDS)
    assert table.schema.metadata[b"k3rl.schema"] == str(TRAJECTORY_SCHEMA).encode()
    for field in SCHEMA:
        documented = TRAJECTORY_FIELDS[field.name].split(":")[0]
        kind = str(field.type)
        if kind.startswith("list"):
            struct = ", ".join(child.name for child in field.type.value_type)
            kind = f"list<{{{struct}}}>"
        assert kind.replace("double", "float64").replace(" ('parts')", "") == documented
    message = table.column("messages")[0].as_py()[4]
    assert list(message) == [field.name for field in fields(Message)]
    assert json.loads(message["tool_calls"])[0]["arguments"] == CALL.arguments


def test_damaged_foreign_and_later_files_are_told(tmp_path: Path) -> None:
    file = tmp_path / "step-000001.parquet"
    write_trajectories(file, [scored(0, (token_log(400, 0),))], advantages=[0.0], step=1, run="r")
    cut = tmp_path / "cut.parquet"
    cut.write_bytes(file.read_bytes()[:-100])
    with pytest.raises(UserError, match=r"cut\.parquet: cannot be read as Parquet"):
        read_trajectories(cut)
    foreign = tmp_path / "foreign.parquet"
    pq.write_table(pa.table({"a": [1]}), foreign)
    with pytest.raises(UserError, match="not of trajectories"):
        read_trajectories(foreign)
    later = tmp_path / "later.parquet"
    pq.write_table(pq.read_table(file).replace_schema_metadata({"k3rl.schema": str(TRAJECTORY_SCHEMA + 1)}), later)
    with pytest.raises(UserError, match=f"schema {TRAJECTORY_SCHEMA + 1}, this k3rl reads up to {TRAJECTORY_SCHEMA}"):
        read_table(later, ["run"])


def test_a_file_that_cannot_be_written_leaves_nothing(tmp_path: Path) -> None:
    blocked = tmp_path / "step-000001.parquet"
    blocked.mkdir()
    with pytest.raises(InfrastructureError, match="trajectories cannot be written"):
        write_trajectories(blocked, [scored(0, (token_log(4, 0),))], advantages=[0.0], step=1, run="r")
    assert [path.name for path in tmp_path.iterdir()] == [blocked.name]


def test_truncate_removes_later_steps_and_half_written_ones(tmp_path: Path) -> None:
    for step in (1, 2, 10):
        write_trajectories(tmp_path / f"step-{step:06d}.parquet", [], advantages=[], step=step, run="r")
    (tmp_path / ".step-000011.parquet.part").write_bytes(b"half")
    truncate_trajectories(tmp_path, 2)
    assert [step for step, _ in step_files(tmp_path)] == [1, 2]
    assert len(list(tmp_path.iterdir())) == 2
