"""What a learner is told once, at its start."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from k3rl.errors import ConfigError


@dataclass(frozen=True, kw_only=True, slots=True)
class LearnerConfig:
    """`LearnerConfig(learning_rate=1e-4)` is reinforcement learning of an MXFP4 model.

    max_tokens: of one micro-batch of one rank. expert_rate: learning rate of routed experts, relative (0: frozen).
    clip_gradient: largest global gradient norm, 0 for no clipping. train: the indexer is trained alone (to predict
    attention, all else frozen) or not at all. sparse: False reads all positions, before there is a trained indexer.
    quantize: the forward multiplies by the MXFP4 bytes; None does what the model's folder says. dither: masters read
    from an MXFP4 checkpoint start anywhere in their rounding cells. balance_rate: gamma of the router bias' sign rule,
    0 (as in reinforcement learning) freezes the bias. threads: of torch, 0 leaves them. deadline_seconds: longest wait
    for another rank.
    """

    max_tokens: int = 8192
    learning_rate: float = 3e-4
    betas: tuple[float, float] = (0.9, 0.95)
    epsilon: float = 1e-8
    weight_decay: float = 0.0
    expert_rate: float = 1.0
    clip_gradient: float = 1.0
    train: Literal["model", "indexer"] = "model"
    sparse: bool = True
    quantize: bool | None = None
    dither: bool = True
    balance_rate: float = 0.0
    threads: int = 0
    seed: int = 0
    deadline_seconds: float = 600.0

    def __post_init__(self) -> None:
        if self.train not in ("model", "indexer"):
            raise ConfigError(f"train: {self.train!r}: choose model or indexer")
        for name in ("max_tokens", "learning_rate", "epsilon", "deadline_seconds"):
            if not getattr(self, name) > 0:
                raise ConfigError(f"learner {name} must be positive, got {getattr(self, name)}")
        for name in ("weight_decay", "clip_gradient", "balance_rate", "threads", "expert_rate"):
            if getattr(self, name) < 0:
                raise ConfigError(f"learner {name} must not be negative, got {getattr(self, name)}")
