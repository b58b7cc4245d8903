"""Starting `k3rl train` as a process of its own, and seeing what it left running."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import time
from collections.abc import Iterable
from pathlib import Path

from k3rl.observability.metrics import comparable, read_metrics
from k3rl.observability.trajectories import read_table, step_files

MARKER = "K3RL_TEST_RUN"
DOOMED = Path(__file__).with_name("doomed.py")


def overrides(model: Path, run_dir: Path, *more: str) -> list[str]:
    """A small joint RL job on the guessing domain: 4 steps of 3 tasks x 4 samples."""
    return [
        f"model.path={model}",
        f"run_dir={run_dir}",
        "environment=[]",
        "+environment.guess._target_=guess_domain.GuessDomain",
        "curriculum.spread=uniform",
        "rollout.tasks_per_step=3",
        "rollout.samples_per_task=4",
        "rollout.max_context=128",
        "rollout.slots=8",
        "rollout.thinking.low=4",
        "learner.learning_rate=3e-3",
        "learner.threads=1",
        "train.steps=4",
        "train.checkpoint_every=2",
        "evaluation.tasks=2",
        "evaluation.heldout_tasks=2",
        "evaluation.samples=2",
        "log.wandb=disabled",
        "ray.object_store_mib=80",
        *more,
    ]


def environment(run_dir: Path) -> dict[str, str]:
    """This process's environment with a marker that every process of the run inherits."""
    return {**os.environ, MARKER: run_dir.name}


def start(
    arguments: list[str], run_dir: Path, *, fate: tuple[str, ...] = (), command: str = "train"
) -> subprocess.Popen[str]:
    """`k3rl COMMAND`; with a fate (see doomed.py) in a process that will kill itself."""
    program = [str(DOOMED), *fate] if fate else ["-m", "k3rl.cli"]
    return subprocess.Popen(
        [sys.executable, *program, command, *arguments],
        env=environment(run_dir),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def finish(process: subprocess.Popen[str], seconds: float = 240) -> tuple[int, str, str]:
    """Exit status, standard output, standard error."""
    out, err = process.communicate(timeout=seconds)
    return process.returncode, out, err


def train(
    arguments: list[str], run_dir: Path, *, fate: tuple[str, ...] = (), command: str = "train"
) -> tuple[int, str, str]:
    """Start and finish."""
    return finish(start(arguments, run_dir, fate=fate, command=command))


def processes(run_dir: Path, *, command: str = "") -> list[int]:
    """Living processes that carry the run's marker, with `command` in their command line."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            marked = f"{MARKER}={run_dir.name}".encode() in (folder / "environ").read_bytes().split(b"\0")
            line = (folder / "cmdline").read_bytes()
            alive = (folder / "stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
        except OSError:
            continue  # it ended while we looked
        if marked and alive and command.encode() in line:
            found.append(int(folder.name))
    return found


def family(root: int) -> dict[int, str]:
    """Command lines of a process and all its descendants, by process id."""
    parents, commands = {}, {}
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            pid = int(folder.name)
            parents[pid] = int((folder / "stat").read_text().rsplit(")", 1)[1].split()[1])
            commands[pid] = (folder / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
        except OSError:
            continue  # it ended while we looked
    members = {root}
    while True:
        more = {pid for pid, parent in parents.items() if parent in members} - members
        if not more:
            return {pid: commands[pid] for pid in members if pid in commands}
        members |= more


def alive(members: Iterable[int]) -> list[int]:
    """Those of the processes that still run: one that has ended and waits for its parent has no command line."""
    found = []
    for pid in members:
        with contextlib.suppress(OSError):
            if Path(f"/proc/{pid}/cmdline").read_bytes():
                found.append(pid)
    return found


def wait_until(holds, what: str, seconds: float = 60.0) -> None:
    """Poll until `holds()`."""
    deadline = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < deadline, f"waited {seconds:g} s until {what}"
        time.sleep(0.05)


def metrics(run_dir: Path) -> list[dict]:
    """The run's metrics without what depends on the clock."""
    return comparable(read_metrics(run_dir / "metrics.jsonl"))


def played(run_dir: Path) -> list[tuple[int, str, int]]:
    """(step, task id, sample) of every stored trajectory."""
    rows = []
    for _, file in step_files(run_dir / "trajectories"):
        table = read_table(file, ["step", "task_id", "sample"]).to_pylist()
        rows += [(row["step"], row["task_id"], row["sample"]) for row in table]
    return rows
