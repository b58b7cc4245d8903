"""What a learner is asked to do for a stretch of training. No torch: the driver writes it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True, slots=True)
class Stage:
    """What the ranks optimize: `objective` grpo, rejection or sft; which parameters; the schedule's length."""

    objective: str
    learning_rate: float
    schedule: str
    warmup: int
    steps: int
    train: str = "model"
    sparse: bool = True
    quantize: bool = True
    balance_rate: float = 0.0
    expert_rate: float = 1.0
