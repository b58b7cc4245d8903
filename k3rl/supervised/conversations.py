"""Data from elsewhere: any folder or file with a `messages` column becomes samples, and so do a run's trajectories."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from k3rl.chat import XtmlRenderer
from k3rl.errors import UserError
from k3rl.learner.samples import demonstration
from k3rl.observability.conversations import read_conversations
from k3rl.observability.trajectories import read_trajectories, trajectory_files
from k3rl.supervised.demonstrations import render, to_samples
from k3rl.supervised.rendering import render_chat
from k3rl.types import Sample, Tier, Turn


def folder_samples(path: Path, renderer: XtmlRenderer, prompt_weight: float) -> list[Sample]:
    """Every conversation of a datasets folder, JSON lines or Parquet at `path`; of a run's `trajectories/` those worth
    imitating (see `imitable`). Messages are rendered by this tokenizer, whichever they were sampled with."""
    files = trajectory_files(path)
    if files:
        return imitable(path, files, renderer, prompt_weight)
    return [
        demonstration(
            render_chat(renderer, messages, tools, Tier.LOW),
            key=f"{path.name}/{row}",
            domain=path.name,
            prompt_weight=prompt_weight,
        )
        for row, (messages, tools) in enumerate(read_conversations(path))
    ]


def imitable(path: Path, files: Sequence[Path], renderer: XtmlRenderer, prompt_weight: float) -> list[Sample]:
    """Rejection sampling: full successes (reward 1) of the training split in which every turn could be read; what a
    malformed turn said cannot be rendered again. Raises UserError if there is none."""
    stored = [row for file in files for row in read_trajectories(file)]
    kept = [row for row in stored if row.split == "train" and row.success and _readable(row.turns)]
    if not kept:
        raise UserError(
            f"{path}: none of {len(stored)} trajectories is a full success of the training split without a malformed "
            "turn; there is nothing to imitate"
        )
    return to_samples(render(kept, renderer), prompt_weight)


def _readable(turns: Sequence[Turn]) -> bool:
    return bool(turns) and not any(turn.problems for turn in turns)
