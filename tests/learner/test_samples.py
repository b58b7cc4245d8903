"""From scored trajectories to samples: what counts, with which signal, and what is left out."""

from dataclasses import replace

import numpy as np
import pytest

from k3rl.learner.samples import demonstration, to_samples
from k3rl.types import Message, Routes, Score, Scored, StopReason, Task, TokenLog, Trajectory

TASK = Task(
    domain="d",
    id="d/train/f/1/0-5",
    split="train",
    family="f",
    level=1,
    seed=0,
    messages=(Message(role="user", content="x"),),
    tools=(),
)


def log(mask):
    mask = np.array(mask, dtype=bool)
    n = len(mask)
    return TokenLog(
        tokens=np.arange(10, 10 + n, dtype=np.int32),
        mask=mask,
        logprobs=np.where(mask, -0.5, 0).astype(np.float32),
        entropies=np.where(mask, 0.7, 0).astype(np.float32),
        versions=np.where(mask, 3, -1).astype(np.int32),
        routes=Routes(experts=np.zeros((n, 2, 2), np.int16), selected=np.full((n, 1, 4), -1, np.int32)),
    )


def scored(*logs, stop=StopReason.ENDED, score=None):
    trajectory = Trajectory(task=TASK, sample=3, logs=logs, turns=(), stop=stop, seconds=0.0)
    return Scored(trajectory=trajectory, score=score or Score(reward=1.0))


def test_sampled_tokens_carry_the_advantage_and_given_ones_nothing():
    given = log([0, 0, 1, 1, 0, 1])
    (sample,) = to_samples(scored(given), -0.25)
    assert (sample.key, sample.domain) == ("d/train/f/1/0-5#3", "d")
    assert sample.loss_mask.tolist() == [0, 0, 1, 1, 0, 1]
    assert sample.advantages.tolist() == [0, 0, -0.25, -0.25, 0, -0.25]
    assert sample.advantages.dtype == sample.loss_mask.dtype == np.float32
    for name in ("tokens", "logprobs", "entropies", "versions", "routes"):
        assert getattr(sample, name) is getattr(given, name)


def test_every_segment_list_is_a_sample_of_its_own():
    samples = to_samples(scored(log([0, 1]), log([0, 0]), log([0, 1, 1])), 0.5)
    assert [sample.key for sample in samples] == ["d/train/f/1/0-5#3.0", "d/train/f/1/0-5#3.2"]
    assert [sample.advantages.tolist() for sample in samples] == [[0, 0.5], [0, 0.5, 0.5]]


@pytest.mark.parametrize("stop", [StopReason.INFRASTRUCTURE, StopReason.ENVIRONMENT])
def test_faults_are_never_trained_on(stop):
    assert to_samples(scored(log([0, 1]), stop=stop), 1.0) == []


def test_what_has_no_score_or_no_sampled_token_is_left_out():
    assert to_samples(replace(scored(log([0, 1])), score=None), 1.0) == []
    assert to_samples(scored(log([0, 0])), 1.0) == []
    assert to_samples(scored(), 1.0) == []


@pytest.mark.parametrize("stop", [StopReason.ENDED, StopReason.TURNS, StopReason.TOKENS, StopReason.SECONDS])
def test_episodes_that_ran_out_of_something_are_trained_on(stop):
    assert len(to_samples(scored(log([0, 1]), stop=stop), 1.0)) == 1


def test_demonstrations_weigh_given_tokens_as_asked_and_replay_nothing():
    sample = demonstration(log([0, 1, 1, 0]), key="k", domain="copy", prompt_weight=0.3)
    assert sample.loss_mask == pytest.approx([0.3, 1, 1, 0.3])
    assert not sample.advantages.any()
    assert sample.routes is None


def test_by_sequence_every_trajectory_weighs_one_however_long_and_in_however_many_lists():
    short, long = to_samples(scored(log([0, 1])), 0.5, per_sequence=True), log([0, 1, 1, 1])
    parts = to_samples(scored(long, log([0, 1])), 0.5, per_sequence=True)
    assert sum(s.loss_mask.sum() for s in short) == sum(s.loss_mask.sum() for s in parts) == 1
    assert parts[0].loss_mask.tolist() == [0, 0.25, 0.25, 0.25]
    assert parts[1].loss_mask.tolist() == [0, 0.25]
    assert parts[0].advantages.tolist() == [0, 0.5, 0.5, 0.5]  # the signal itself is not scaled
