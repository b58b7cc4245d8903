"""A job's configuration becomes the learner's settings, without losing one."""

import pytest

from k3rl.algorithms.objectives import GRPO, SFT
from k3rl.config import AlgorithmSection, Config, LearnerSection, RolloutSection
from k3rl.errors import ConfigError
from k3rl.learner.config import LearnerConfig
from k3rl.learner.orders import learner_config, make_objective, make_schedule
from k3rl.learner.stage import Stage

CONFIG = Config(
    seed=7,
    rollout=RolloutSection(temperature=0.8),
    algorithm=AlgorithmSection(clip_low=0.1, clip_high=0.4),
    learner=LearnerSection(
        threads=3, betas=(0.8, 0.9), weight_decay=0.2, clip_gradient=0.5, micro_batch_tokens=4000, dither=False
    ),
)
STAGE = Stage(objective="grpo", learning_rate=2e-4, schedule="cosine", warmup=2, steps=10, expert_rate=3.0)


def test_settings_arrive() -> None:
    assert learner_config(CONFIG, STAGE) == LearnerConfig(
        max_tokens=4000,
        learning_rate=2e-4,
        betas=(0.8, 0.9),
        weight_decay=0.2,
        expert_rate=3.0,
        clip_gradient=0.5,
        quantize=None,
        dither=False,
        threads=3,
        seed=7,
    )


def test_every_stage_of_supervised_training_arrives() -> None:
    stage = Stage(
        objective="sft",
        learning_rate=1e-3,
        schedule="constant",
        warmup=0,
        steps=5,
        train="indexer",
        sparse=False,
        quantize=False,
        balance_rate=0.01,
    )
    got = learner_config(CONFIG, stage)
    assert (got.train, got.sparse, got.quantize, got.balance_rate) == ("indexer", False, False, 0.01)
    assert make_objective(CONFIG, stage) == SFT(), "demonstrations have no sampling temperature"


@pytest.mark.parametrize(
    ("objective", "wanted"),
    [("grpo", GRPO(clip_low=0.1, clip_high=0.4, temperature=0.8)), ("rejection", SFT(temperature=0.8))],
)
def test_objectives_use_the_temperature_of_sampling(objective: str, wanted: GRPO | SFT) -> None:
    stage = Stage(objective=objective, learning_rate=1e-3, schedule="constant", warmup=0, steps=5)
    assert make_objective(CONFIG, stage) == wanted


def test_the_schedule_is_the_stage_s() -> None:
    schedule = make_schedule(STAGE)
    assert [schedule.rate(step) for step in (0, 1, 6, 10)] == pytest.approx([0.5, 1.0, 0.5, 0.0])


def test_an_unknown_objective_is_refused() -> None:
    stage = Stage(objective="ppo", learning_rate=1e-3, schedule="constant", warmup=0, steps=5)
    with pytest.raises(ConfigError, match="'ppo': choose grpo, rejection or sft"):
        make_objective(CONFIG, stage)
