"""The metrics file through tears, truncation and a full disk; Weights & Biases through success and failure."""

from __future__ import annotations

import json
import logging
import math
import os
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from k3rl.errors import InfrastructureError, UserError
from k3rl.observability.metrics import MetricsLog, comparable, read_metrics
from k3rl.observability.tracker import Tracker


def filled(path: Path, steps: int) -> MetricsLog:
    log = MetricsLog(path)
    for step in range(1, steps + 1):
        log.append(step, {"loss": 1 / step, "time/seconds": 0.1})
    return log


def test_lines_are_plain_json(tmp_path: Path) -> None:
    log = MetricsLog(tmp_path / "run" / "metrics.jsonl")
    log.append(1, {"loss": np.float32(0.5), "n": np.int64(3), "bad": math.nan, "worse": np.float64("inf"), "tag": "a"})
    line = log.path.read_text()
    assert line.endswith("\n")
    assert json.loads(line) == {"step": 1, "loss": 0.5, "n": 3, "bad": None, "worse": None, "tag": "a"}
    assert log.read() == [json.loads(line)]


def test_a_later_writer_goes_on(tmp_path: Path) -> None:
    file = tmp_path / "m.jsonl"
    filled(file, 2)
    log = MetricsLog(file)
    with pytest.raises(ValueError, match="step 2 after step 2"):
        log.append(2, {})
    log.append(3, {})
    assert [record["step"] for record in read_metrics(file)] == [1, 2, 3]


@given(cut=st.integers(0, 200))
def test_wherever_the_file_is_torn_whole_steps_survive(tmp_path_factory: pytest.TempPathFactory, cut: int) -> None:
    file = tmp_path_factory.mktemp("torn") / "m.jsonl"
    filled(file, 4)
    data = file.read_bytes()[:cut]
    file.write_bytes(data)
    whole = data.count(b"\n")
    assert [record["step"] for record in read_metrics(file)] == list(range(1, whole + 1))
    assert file.read_bytes() == data  # a reader changes nothing
    MetricsLog(file).append(whole + 1, {"loss": 1 / (whole + 1), "time/seconds": 0.1})
    assert [record["loss"] for record in read_metrics(file)] == [1 / step for step in range(1, whole + 2)]


def test_truncate_to_a_step(tmp_path: Path) -> None:
    file = tmp_path / "m.jsonl"
    log = filled(file, 5)
    before = file.read_bytes().splitlines(keepends=True)
    log.truncate(3)
    assert file.read_bytes() == b"".join(before[:3])
    log.append(4, {})
    log.truncate(0)
    assert file.read_bytes() == b""
    log.append(1, {})
    assert list(tmp_path.iterdir()) == [file]


def test_a_broken_line_is_named(tmp_path: Path) -> None:
    file = tmp_path / "m.jsonl"
    file.write_text('{"step": 1}\noops\n{"step": 3}\n')
    with pytest.raises(UserError, match=r"m\.jsonl, line 2: not a step of metrics"):
        read_metrics(file)
    file.write_text('{"loss": 1}\n')
    with pytest.raises(UserError, match="no whole number under `step`"):
        MetricsLog(file)


def test_no_file_is_no_steps(tmp_path: Path) -> None:
    assert read_metrics(tmp_path / "none.jsonl") == []


def test_a_full_disk_is_told_and_leaves_whole_lines(tmp_path: Path) -> None:
    log = filled(tmp_path / "m.jsonl", 1)
    whole = log.path.read_bytes()
    # The file-size limit makes the kernel write a part of the line and refuse the rest, as a full disk does.
    script = (
        "import resource, sys, signal, pathlib\n"
        "from k3rl.observability.metrics import MetricsLog\n"
        "log = MetricsLog(pathlib.Path(sys.argv[1]))\n"
        "signal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n"
        f"resource.setrlimit(resource.RLIMIT_FSIZE, ({len(whole) + 10},) * 2)\n"
        "log.append(2, {'loss': 0.123456789})\n"
    )
    done = subprocess.run([sys.executable, "-c", script, str(log.path)], capture_output=True, text=True, check=False)
    assert f"{InfrastructureError.__name__}: {log.path}: step 2 cannot be written" in done.stderr
    assert log.path.read_bytes() == whole


def test_comparable_leaves_out_the_clock(tmp_path: Path) -> None:
    assert comparable(filled(tmp_path / "m.jsonl", 2).read()) == [{"step": 1, "loss": 1.0}, {"step": 2, "loss": 0.5}]


TRACK = """
import os, pathlib, signal, sys
from k3rl.observability.tracker import Tracker
tracker = Tracker(pathlib.Path(sys.argv[1]), "auto", project="k3rl", name="test", config={"a": {"b": 1}})
assert tracker.active
for step in (1, 2):
    tracker.log({"step": step, "loss": 0.5, "nothing": None})
if sys.argv[2] == "die":
    os.kill(os.getpid(), signal.SIGKILL)
tracker.finish()
assert not tracker.active
"""


def test_offline_files_lie_in_the_run_folder_and_a_resumed_run_keeps_its_id(tmp_path: Path) -> None:
    quiet = {key: value for key, value in os.environ.items() if not key.startswith("WANDB_")}
    ends = []
    for end in ("die", "finish"):
        command = [sys.executable, "-W", "error", "-c", TRACK, str(tmp_path / "run"), end]
        ends.append(subprocess.run(command, capture_output=True, text=True, check=False, env=quiet))
    assert ends[0].returncode == -signal.SIGKILL
    assert (ends[1].returncode, ends[1].stdout, ends[1].stderr) == (0, "", "")
    run_id = (tmp_path / "run" / "wandb_id").read_text()
    files = list((tmp_path / "run" / "wandb").glob("offline-run-*/*.wandb"))
    assert {file.name for file in files} == {f"run-{run_id}.wandb"}


def test_a_failure_is_told_once_and_the_run_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("WANDB_API_KEY", "too short to be a key")
    with caplog.at_level(logging.WARNING):
        tracker = Tracker(tmp_path, "auto", project="k3rl", name="test", config={})
        tracker.log({"step": 1})
        tracker.finish()
    told = [record.message for record in caplog.records if record.name == "k3rl.observability.tracker"]
    assert len(told) == 1
    assert told[0].startswith("Weights & Biases failed to start (")
    assert "\n" not in told[0]


def test_disabled_never_loads_wandb(tmp_path: Path) -> None:
    script = (
        "import sys, pathlib\n"
        "from k3rl.observability.tracker import Tracker\n"
        "Tracker(pathlib.Path(sys.argv[1]), 'disabled', project='p', name='n', config={}).log({'step': 1})\n"
        "assert 'wandb' not in sys.modules\n"
    )
    subprocess.run([sys.executable, "-c", script, str(tmp_path)], check=True)
    assert list(tmp_path.iterdir()) == []


def test_nothing_here_loads_torch_or_ray() -> None:
    script = (
        "import sys\n"
        "from k3rl.observability import conversations, metrics, tracker, trajectories\n"
        "from k3rl.evaluation import picture, report, results, statistics, tables\n"
        "heavy = {'torch', 'ray', 'wandb', 'matplotlib', 'rich', 'datasets'} & set(sys.modules)\n"
        "assert not heavy, heavy\n"
    )
    subprocess.run([sys.executable, "-c", script], check=True)
