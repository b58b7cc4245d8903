"""Engine and learner, the real ones: what decoding logged against the learner's packed forward, bars of the design.

Published weights are applied by the engine with all its checks; sessions have several turns and contexts past the
sparse top-k. The same figures must catch an engine that was not given the newest version.
"""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from k3rl.algorithms.objectives import GRPO
from k3rl.inference import Engine, Sampling, TurnRules
from k3rl.learner.config import LearnerConfig
from k3rl.learner.learner import Learner
from k3rl.model import Model, preset, save_model
from k3rl.model.config import DsaConfig
from k3rl.types import Sample, TokenLog
from tests.learner.nano import TOP_K, VOCABULARY

MEAN_BAR, P99_BAR = 5e-5, 5e-4
RULES = TurnRules(stop=VOCABULARY + 1, close_thinking=(VOCABULARY + 2,))  # neither is ever sampled
CANARY = list(range(1, 30))
SESSIONS = 12


@pytest.fixture(scope="module")
def sharp(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A random model with logits of deviation 2, between uniform and greedy."""
    torch.manual_seed(0)
    shape = replace(preset("nano"), vocab_size=VOCABULARY, dsa=DsaConfig(num_heads=2, head_dim=32, top_k=TOP_K))
    model = Model(shape)
    with torch.no_grad():
        model.lm_head.mul_(2 / model(torch.arange(VOCABULARY)).logits.std())
    folder = tmp_path_factory.mktemp("sharp")
    save_model(model, folder, packed=True)
    return folder


def play(engine: Engine, version: int, temperature: float) -> list[Sample]:
    """Sessions of three turns at once, with given tokens between; the version is what the engine was told."""
    rng = np.random.default_rng(version)
    prompts = [rng.integers(0, VOCABULARY, 9).tolist() for _ in range(SESSIONS // 2) for _ in range(2)]
    sessions = [
        engine.open(prompt, seed=i, sampling=Sampling(temperature=temperature), group_key=str(i))
        for i, prompt in enumerate(prompts)
    ]
    for _ in range(3):
        for session in sessions:
            given = rng.integers(0, VOCABULARY, int(rng.integers(0, 5))).tolist()
            engine.start_turn(session, given, max_tokens=int(rng.integers(4, 14)), thinking_budget=None)
        finished = 0
        while finished < SESSIONS:
            finished += len(engine.step())
    return [_sample(engine.close(session), f"{version}/{i}", rng.normal()) for i, session in enumerate(sessions)]


def _sample(log: TokenLog, key: str, advantage: float) -> Sample:
    mask = log.mask.astype(np.float32)
    return Sample(
        key=key,
        domain="code",
        tokens=log.tokens,
        loss_mask=mask,
        advantages=mask * np.float32(advantage),
        logprobs=log.logprobs,
        entropies=log.entropies,
        versions=log.versions,
        routes=log.routes,
    )


@pytest.mark.parametrize("temperature", [1.0, 0.7])
def test_they_agree_over_versions_and_a_stale_engine_is_caught(sharp: Path, temperature: float) -> None:
    learner = Learner(sharp, LearnerConfig(learning_rate=3e-4, max_tokens=200))
    engine = Engine(Model(learner.model.config), slots=SESSIONS, max_context=80, rules=RULES)
    objective = GRPO(temperature=temperature)
    for version in range(3):
        engine.publish(learner.publication(version, CANARY))
        metrics = learner.step(play(engine, version, temperature), objective)
        assert metrics["mismatch/n"] > 150
        assert metrics["mismatch/mean"] < MEAN_BAR
        assert metrics["mismatch/p99"] < P99_BAR
        assert metrics["routes_differ"] < 0.01
        assert metrics["selections_differ"] < 0.01
        assert metrics["ratio"] == pytest.approx(1.0, abs=MEAN_BAR)
        assert metrics["experts/alarm_still"] == 0.0
    engine.version = 3  # it says so, and still holds version 2
    report = learner.compare(play(engine, 3, temperature), temperature=temperature)
    assert report.version == 3
    assert report.all.mean > MEAN_BAR
    assert report.all.p99 > P99_BAR
