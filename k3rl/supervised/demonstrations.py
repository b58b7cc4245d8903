"""Reference solutions as training data: played in the real environments, kept as trajectories, rendered when read.

A run's `demonstrations/` folder holds one Parquet file per shard. Only the training split is played and only full
successes are used. Tokens are made from the messages, so another tokenizer needs no new episodes.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from k3rl.chat import XtmlRenderer
from k3rl.errors import EnvironmentFault
from k3rl.learner.samples import demonstration
from k3rl.observability.progress import Bar
from k3rl.observability.trajectories import StoredTrajectory, read_trajectories, step_files
from k3rl.rollout.group import GroupSpec
from k3rl.rollout.pool import RolloutPool
from k3rl.supervised.rendering import render_chat
from k3rl.types import Sample, TokenLog

SHARD = 600  # episodes in a file
SEEDS_APART = 1_000_000
"""Demonstrations draw their tasks with `seed + SEEDS_APART`, so that reinforcement learning, with any other seed,
never meets a task whose solution the base model has been shown: what it does there is memory."""


def demonstration_specs(levels: dict[str, int], count: int, seed: int) -> list[GroupSpec]:
    """`count` solver episodes per domain, levels in turn; domains interleaved so that every shard has all of them."""
    return [
        GroupSpec(
            domain=domain,
            split="train",
            level=1 + place % levels[domain],
            index=place // levels[domain],
            samples=1,
            seed=seed + SEEDS_APART,
            temperature=0.0,
            player="solver",
        )
        for place in range(count)
        for domain in sorted(levels)
    ]


def missing_shards(folder: Path, episodes: int) -> list[int]:
    """Numbers of the shards of `episodes` demonstrations, over all domains, that are not in `folder`."""
    there = {number for number, _ in step_files(folder)} if folder.is_dir() else set()
    return [number for number in range(-(-episodes // SHARD)) if number not in there]


def generate(pool: RolloutPool, folder: Path, count: int, seed: int) -> None:
    """Play what is not in `folder` yet, shard by shard; a killed run goes on at the first missing shard.

    Raises EnvironmentFault if a reference solution fails its own task: demonstrations must be right.
    """
    specs = demonstration_specs(pool.levels, count, seed)
    folder.mkdir(parents=True, exist_ok=True)
    missing = missing_shards(folder, len(specs))
    shards = [specs[start : start + SHARD] for start in range(0, len(specs), SHARD)]
    with Bar("demonstrations", len(specs)) as bar:
        for number, shard in enumerate(shards):
            if number not in missing:
                bar.advance(len(shard))
                continue
            groups = pool.run(shard, lambda group: bar.advance())
            for episode in (e for group in groups for e in group.episodes):
                if not episode.success:
                    raise EnvironmentFault(
                        f"the reference solution of {episode.task_id} scored {episode.reward}: {episode.error}"
                    )
            path = str(folder / f"step-{number:06d}.parquet")
            pool.record(groups, [[0.0]] * len(groups), path=path, step=number, run="demonstrations").wait()


def load_demonstrations(folder: Path) -> list[StoredTrajectory]:
    """Every full success in the folder, in order."""
    return [row for _, file in step_files(folder) for row in read_trajectories(file) if row.success]


@dataclass(frozen=True, kw_only=True, slots=True)
class Rendered:
    """A trajectory's messages as tokens; `key` is its task's id."""

    key: str
    domain: str
    log: TokenLog


def render(stored: Sequence[StoredTrajectory], renderer: XtmlRenderer) -> list[Rendered]:
    """By the current tokenizer, whichever they were played with."""
    rendered = []
    with Bar("rendering", len(stored)) as bar:
        for row in stored:
            log = render_chat(renderer, row.messages, row.tools, row.tier)
            rendered.append(Rendered(key=row.task_id, domain=row.domain, log=log))
            bar.advance()
    return rendered


def to_samples(rendered: Iterable[Rendered], prompt_weight: float) -> list[Sample]:
    """For supervised training: sampled tokens weigh 1, given ones `prompt_weight`."""
    return [demonstration(one.log, key=one.key, domain=one.domain, prompt_weight=prompt_weight) for one in rendered]
