"""Agreement with rollouts: nothing apart when all is right, and told when it is not."""

from pathlib import Path

import numpy as np
import pytest
import torch

from k3rl.algorithms.objectives import GRPO
from k3rl.learner.config import LearnerConfig
from k3rl.learner.learner import Learner
from k3rl.model import load_model, save_model
from k3rl.types import Routes, Sample
from tests.learner.nano import rollouts

MEAN_BAR, P99_BAR = 5e-5, 5e-4
LENGTHS = [40, 31, 22, 50]


def test_rollouts_of_these_weights_agree(folder: Path) -> None:
    samples = rollouts(folder, LENGTHS)
    learner = Learner(folder, LearnerConfig(max_tokens=75))
    report = learner.compare(samples)
    assert report.version == 0
    assert report.all.n == sum(int((s.loss_mask > 0).sum()) for s in samples)
    assert report.all.mean < 1e-6 < MEAN_BAR
    assert report.all.maximum < 1e-5
    assert report.routes_differ == 0.0
    assert report.selections_differ == 0.0
    metrics = learner.step(samples, GRPO())
    assert metrics["mismatch/mean"] == pytest.approx(report.all.mean, rel=1e-3)
    assert metrics["mismatch/n"] == report.all.n
    assert metrics["ratio"] == pytest.approx(1.0, abs=1e-6)


def test_an_engine_one_version_old_is_caught(folder: Path) -> None:
    samples = rollouts(folder, LENGTHS)
    learner = Learner(folder, LearnerConfig(learning_rate=3e-4))
    learner.step(samples, GRPO())
    report = learner.compare(samples)
    assert report.all.mean > MEAN_BAR
    assert report.all.p99 > P99_BAR


def test_choices_that_the_learner_would_not_make_are_told(folder: Path, tmp_path: Path) -> None:
    """Rollouts of a model whose routers and indexers are another's: the share is what a direct comparison counts."""
    other = load_model(folder)
    torch.manual_seed(1)
    with torch.no_grad():
        for name, p in other.named_parameters():
            if "router" in name or "indexer" in name:
                p.add_(0.3 * p.std() * torch.randn_like(p))
    save_model(other, tmp_path / "other", packed=True)
    samples = rollouts(tmp_path / "other", LENGTHS)
    report = Learner(folder, LearnerConfig()).compare(samples)
    assert report.routes_differ is not None
    assert report.selections_differ is not None
    assert 0.0 < report.routes_differ < 0.9
    assert 0.0 < report.selections_differ < 0.9
    assert report.all.maximum < 20.0


def test_one_version_and_enough_entropy_count(folder: Path) -> None:
    old, new = rollouts(folder, [30, 20], version=3), rollouts(folder, [25, 41], version=4, seed=1)
    renamed = [_with(s, key=f"new/{i}") for i, s in enumerate(new)]
    learner = Learner(folder, LearnerConfig())
    count = [sum(int((s.loss_mask > 0).sum()) for s in group) for group in (old, renamed)]
    assert learner.compare([*old, *renamed]).all.n == count[1]
    assert learner.compare([*old, *renamed], version=3).all.n == count[0]
    quiet = [_with(s, entropies=np.full_like(s.entropies, 0.05)) for s in old]
    assert learner.compare(quiet).all.n == 0


def test_routes_are_replayed_where_they_were_recorded(folder: Path) -> None:
    """Recorded experts are used though the router would choose others: log-probabilities move."""
    (sample,) = rollouts(folder, [40])
    assert sample.routes is not None
    turned = Routes(
        experts=np.where(sample.routes.experts < 0, -1, 7 - sample.routes.experts), selected=sample.routes.selected
    )
    learner = Learner(folder, LearnerConfig())
    report = learner.compare([_with(sample, routes=turned)])
    assert report.all.mean > 1e-3
    assert report.routes_differ is not None
    assert report.routes_differ > 0.5


def _with(sample: Sample, **changes: object) -> Sample:
    fields = {name: getattr(sample, name) for name in sample.__dataclass_fields__}
    return Sample(**{**fields, **changes})
