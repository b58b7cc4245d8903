"""A learner rank under a job's configuration: objective, schedule and canary fixed for the stage that is trained."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from k3rl.algorithms.objectives import GRPO, SFT, Objective
from k3rl.config import Config
from k3rl.errors import ConfigError, InfrastructureError
from k3rl.learner.config import LearnerConfig
from k3rl.learner.learner import Learner
from k3rl.learner.optimizer import Schedule
from k3rl.learner.stage import Stage
from k3rl.sync import Publication
from k3rl.types import Sample

CANARY_TOKENS = 72  # past nano's sparse top-k, so that the indexer takes part; every engine decodes them per version
CANARY_SEED = 20


class StagedLearner:
    """A `Learner` that knows what it is asked for: the same calls for reinforcement and supervised stages."""

    def __init__(self, config: Config, model_folder: str, stage: Stage, *, rank: int, rendezvous: str) -> None:
        self._stage = stage
        self._objective = make_objective(config, stage)
        self._schedule = Schedule(kind=stage.schedule, warmup=stage.warmup, steps=stage.steps)  # type: ignore[arg-type]
        self._learner = Learner(
            model_folder,
            learner_config(config, stage),
            rank=rank,
            world=config.learner.ranks,
            rendezvous=rendezvous,
        )
        vocabulary = self._learner.model.config.vocab_size
        self._canary = np.random.RandomState(CANARY_SEED).randint(0, vocabulary, CANARY_TOKENS).tolist()

    def step(self, samples: Sequence[Sample], *, done: int) -> dict[str, float]:
        """One optimizer step; `done` is how many the caller has seen: a step lost or taken twice is an error."""
        if done != self._learner.steps:
            raise InfrastructureError(f"the driver has seen {done} optimizer steps, the learner {self._learner.steps}")
        rate = self._schedule.rate(done)
        if self._stage.train == "indexer":
            return self._learner.warm_up_indexer(samples, rate)
        return self._learner.step(samples, self._objective, rate)

    def publication(self, version: int) -> Publication:
        """The weights as they are, with the canary of this job."""
        return self._learner.publication(version, self._canary)

    def save(self, folder: Path) -> None:
        """See `Learner.save`."""
        self._learner.save(folder)

    def load(self, folder: Path) -> None:
        """See `Learner.load`."""
        self._learner.load(folder)

    def export(self, folder: Path, *, packed: bool) -> None:
        """See `Learner.export`."""
        self._learner.export(folder, packed=packed)


def make_objective(config: Config, stage: Stage) -> Objective:
    """The objective of a stage, at the temperature its samples were drawn with."""
    match stage.objective:
        case "grpo":
            algorithm = config.algorithm
            return GRPO(
                clip_low=algorithm.clip_low,
                clip_high=algorithm.clip_high,
                temperature=config.rollout.temperature,
            )
        case "rejection":
            return SFT(temperature=config.rollout.temperature)
        case "sft":
            return SFT()
        case other:
            raise ConfigError(f"objective {other!r}: choose grpo, rejection or sft")


def learner_config(config: Config, stage: Stage) -> LearnerConfig:
    """The learner's part of a job's configuration."""
    settings = config.learner
    return LearnerConfig(
        max_tokens=settings.micro_batch_tokens,
        learning_rate=stage.learning_rate,
        betas=settings.betas,
        weight_decay=settings.weight_decay,
        expert_rate=stage.expert_rate,
        clip_gradient=settings.clip_gradient,
        train=stage.train,  # type: ignore[arg-type]
        sparse=stage.sparse,
        quantize=None if stage.quantize else False,
        dither=settings.dither,
        balance_rate=stage.balance_rate,
        threads=settings.threads,
        seed=config.seed,
    )
