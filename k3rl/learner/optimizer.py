"""What the optimizer moves, at which rate: parameter groups by name, and a schedule given by step."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

from torch.nn import Parameter

from k3rl.errors import ConfigError

INDEXER = ".indexer."
ROUTED = ".experts."
NO_DECAY = ("A_log", "dt_bias", "norm", "bias")  # anywhere in the last two parts of a name


@dataclass(frozen=True, kw_only=True, slots=True)
class Schedule:
    """Relative learning rate by optimizer step: linear warm-up, then constant, or a cosine down to `floor`.

    `Schedule(kind="cosine", warmup=10, steps=100).rate(step)`; step counts from 0, `steps` includes the warm-up.
    """

    kind: Literal["constant", "cosine"] = "constant"
    warmup: int = 0
    steps: int = 0
    floor: float = 0.0

    def __post_init__(self) -> None:
        if self.kind not in ("constant", "cosine"):
            raise ConfigError(f"schedule kind {self.kind!r}: choose constant or cosine")
        if self.kind == "cosine" and self.steps <= self.warmup:
            raise ConfigError(f"a cosine over {self.steps} steps has none left after {self.warmup} of warm-up")

    def rate(self, step: int) -> float:
        """The factor of the learning rate at `step`."""
        if step < self.warmup:
            return (step + 1) / self.warmup
        if self.kind == "constant":
            return 1.0
        done = min((step - self.warmup) / (self.steps - self.warmup), 1.0)
        return self.floor + (1.0 - self.floor) * 0.5 * (1.0 + math.cos(math.pi * done))


@dataclass(frozen=True, kw_only=True, slots=True)
class ParameterGroup:
    """Named parameters that share a weight decay and a learning rate (relative to the base one)."""

    parameters: tuple[tuple[str, Parameter], ...]
    weight_decay: float
    rate: float


def is_trained(name: str, train: Literal["model", "indexer"]) -> bool:
    """Everything but the indexer, or the indexer alone. (The router's bias is a buffer: load counts move it.)"""
    return (INDEXER in name) == (train == "indexer")


def decays(name: str, parameter: Parameter) -> bool:
    """Whether weight decay applies: matrices only, never norms, gates' A_log and dt_bias, or biases."""
    return parameter.ndim >= 2 and not any(part in ".".join(name.split(".")[-2:]) for part in NO_DECAY)


def parameter_groups(
    named: Iterable[tuple[str, Parameter]],
    *,
    train: Literal["model", "indexer"],
    weight_decay: float,
    expert_rate: float,
) -> tuple[ParameterGroup, ...]:
    """Groups of what is trained, empty ones left out; the rest is frozen in place (requires_grad False), routed experts
    too where `expert_rate` is 0.

    A filter that leaves nothing to train is an error: it would be a run that learns nothing without a word.
    """
    kinds: dict[tuple[float, float], list[tuple[str, Parameter]]] = {}
    for name, parameter in named:
        rate = expert_rate if ROUTED in name else 1.0
        parameter.requires_grad_(is_trained(name, train) and rate > 0)
        if parameter.requires_grad:
            kinds.setdefault((weight_decay if decays(name, parameter) else 0.0, rate), []).append((name, parameter))
    if not kinds:
        raise ConfigError(f"nothing to train: the model has no parameters of kind {train!r}")
    return tuple(
        ParameterGroup(parameters=tuple(members), weight_decay=decay, rate=rate)
        for (decay, rate), members in sorted(kinds.items())
    )
