"""Other people's data: any folder or file with a `messages` column becomes samples."""

from __future__ import annotations

from pathlib import Path

from k3rl.chat import XtmlRenderer
from k3rl.learner.samples import demonstration
from k3rl.observability.conversations import read_conversations
from k3rl.supervised.rendering import render_chat
from k3rl.types import Sample, Tier


def folder_samples(path: Path, renderer: XtmlRenderer, prompt_weight: float) -> list[Sample]:
    """Every conversation of a datasets folder, JSON lines or Parquet at `path`."""
    return [
        demonstration(
            render_chat(renderer, messages, tools, Tier.LOW),
            key=f"{path.name}/{row}",
            domain=path.name,
            prompt_weight=prompt_weight,
        )
        for row, (messages, tools) in enumerate(read_conversations(path))
    ]
