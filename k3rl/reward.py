"""Rubrics: a weighted sum of named parts, each a small pure function of what the agent left."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol, TypeAlias

from k3rl.errors import EnvironmentFault
from k3rl.types import Json, Score

Artifacts: TypeAlias = Mapping[str, Json]
"""What scoring may look at."""


class Reward(Protocol):
    """One part of a score, in [0, 1]."""

    def __call__(self, artifacts: Artifacts) -> float: ...


@dataclass(frozen=True, kw_only=True, slots=True)
class Part:
    """`weight` in the sum; a `gate` part multiplies the whole instead (0 closes it)."""

    name: str
    reward: Reward
    weight: float = 1.0
    gate: bool = False


@dataclass(frozen=True, kw_only=True, slots=True)
class Rubric:
    """`Rubric(parts=(Part(name="tree", reward=same_tree), Part(name="clean", reward=no_litter, gate=True)))`."""

    parts: tuple[Part, ...]

    def score(self, artifacts: Artifacts) -> Score:
        """Every part's value and the gated, weighted mean. A part outside [0, 1] is the domain's fault."""
        values: dict[str, float] = {}
        for part in self.parts:
            value = float(part.reward(artifacts))
            if not math.isfinite(value) or not 0.0 <= value <= 1.0:
                raise EnvironmentFault(f"reward part {part.name!r} gave {value}; parts must lie in [0, 1]")
            values[part.name] = value
        weighted = [p for p in self.parts if not p.gate]
        total = sum(p.weight for p in weighted)
        mean = sum(p.weight * values[p.name] for p in weighted) / total if total else 1.0
        gate = math.prod(values[p.name] for p in self.parts if p.gate)
        return Score(reward=mean * gate, parts=values)
