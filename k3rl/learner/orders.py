"""From the configuration and a stage to what the learner understands: its settings, objective and schedule."""

from __future__ import annotations

from typing import Literal, cast

from k3rl.algorithms.objectives import GRPO, SFT, Objective
from k3rl.config import Config
from k3rl.errors import ConfigError
from k3rl.learner.config import LearnerConfig
from k3rl.learner.optimizer import Schedule
from k3rl.learner.stage import Stage


def learner_config(config: Config, stage: Stage) -> LearnerConfig:
    """Settings of one stage's learner."""
    settings = config.learner
    return LearnerConfig(
        max_tokens=settings.micro_batch_tokens,
        learning_rate=stage.learning_rate,
        betas=settings.betas,
        weight_decay=settings.weight_decay,
        expert_rate=stage.expert_rate,
        clip_gradient=settings.clip_gradient,
        train=cast(Literal["model", "indexer"], stage.train),
        sparse=stage.sparse,
        quantize=None if stage.quantize else False,  # only what is published in MXFP4 is trained in it
        dither=settings.dither,
        balance_rate=stage.balance_rate,
        threads=settings.threads,
        seed=config.seed,
    )


def make_objective(config: Config, stage: Stage) -> Objective:
    """What the stage optimizes, at the temperature that its samples were drawn with."""
    temperature = config.rollout.temperature
    match stage.objective:
        case "grpo":
            algorithm = config.algorithm
            return GRPO(clip_low=algorithm.clip_low, clip_high=algorithm.clip_high, temperature=temperature)
        case "rejection":
            return SFT(temperature=temperature)
        case "sft":
            return SFT()
        case other:
            raise ConfigError(f"objective {other!r}: choose grpo, rejection or sft")


def make_schedule(stage: Stage) -> Schedule:
    """The stage's learning rate over its steps."""
    return Schedule(kind=cast(Literal["constant", "cosine"], stage.schedule), warmup=stage.warmup, steps=stage.steps)
