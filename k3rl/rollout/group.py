"""What the driver asks for and what it gets back: a group of samples of one task, and a small summary of each.

Tokens, messages and routes stay in the object store; the driver sees summaries and holds references.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import Literal

from k3rl.types import Scored, Split, StopReason, Tier


@dataclass(frozen=True, kw_only=True, slots=True)
class GroupSpec:
    """`samples` episodes of task number `index`. `player` is the model, or the reference solver of the domain.

    `GroupSpec(domain="terminal", split="train", level=2, index=17, samples=8, seed=0, temperature=1.0)`
    """

    domain: str
    split: Split
    level: int
    index: int
    samples: int
    seed: int
    temperature: float
    family: str | None = None
    player: Literal["model", "solver"] = "model"

    def sample_seed(self, sample: int) -> int:
        """A 63-bit seed of one sample: the same for the same place in the same run, whatever runs beside it."""
        place = (self.domain, self.split, self.family, self.level, self.index, self.seed, self.temperature, sample)
        text = "/".join(map(str, place))
        return int.from_bytes(blake2b(text.encode(), digest_size=8).digest(), "big") >> 1


@dataclass(frozen=True, kw_only=True, slots=True)
class EpisodeSummary:
    """One finished episode as the driver sees it; `reward` is None where it says nothing about the policy."""

    task_id: str
    domain: str
    split: Split
    family: str
    level: int
    tier: Tier
    sample: int
    reward: float | None
    stop: StopReason
    parts: Mapping[str, float] = field(default_factory=dict)
    error: str = ""
    turns: int = 0
    malformed: int = 0  # turns whose markup could not be read
    context_tokens: int = 0
    sampled_tokens: int = 0
    thinking_tokens: int = 0
    seconds: float = 0.0

    @property
    def success(self) -> bool:
        return self.reward is not None and self.reward >= 1.0


def summarize(scored: Scored) -> EpisodeSummary:
    """The driver's view of `scored`."""
    trajectory = scored.trajectory
    task = trajectory.task
    return EpisodeSummary(
        task_id=task.id,
        domain=task.domain,
        split=task.split,
        family=task.family,
        level=task.level,
        tier=task.tier,
        sample=trajectory.sample,
        reward=None if scored.score is None else scored.score.reward,
        parts={} if scored.score is None else scored.score.parts,
        stop=trajectory.stop,
        error=trajectory.error,
        turns=len(trajectory.turns),
        malformed=sum(bool(turn.problems) for turn in trajectory.turns),
        context_tokens=sum(len(log.tokens) for log in trajectory.logs),
        sampled_tokens=sum(int(log.mask.sum()) for log in trajectory.logs),
        thinking_tokens=sum(turn.thinking_tokens for turn in trajectory.turns),
        seconds=trajectory.seconds,
    )
