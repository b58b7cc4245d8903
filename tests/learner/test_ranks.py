"""The same stored batches through one rank and two, uneven lengths, 20 steps: the same gradients and losses."""

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

from k3rl.learner.config import LearnerConfig
from k3rl.learner.learner import Learner

STEPS = 20
ROOT = Path(__file__).parents[2]


def train(folder: Path, out: Path, world: int, max_tokens: int) -> tuple[dict[str, Tensor], list[float], list[float]]:
    """Gradients of the first step summed over ranks, losses and gradient norms of all steps."""
    out.mkdir()
    arguments = [str(STEPS), str(max_tokens), str(out)]
    command = [sys.executable, "-m", "tests.learner.rank_job", str(folder)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
    ranks = [
        subprocess.Popen(
            [*command, str(rank), str(world), *arguments], cwd=ROOT, env=environment, stderr=subprocess.PIPE
        )
        for rank in range(world)
    ]
    errors = [rank.communicate(timeout=240)[1].decode() for rank in ranks]
    assert [rank.returncode for rank in ranks] == [0] * world, errors
    shares = [load_file(out / f"gradients-{rank}.safetensors") for rank in range(world)]
    gradients = {name: sum((share[name] for share in shares[1:]), shares[0][name]) for name in shares[0]}
    logs = [json.loads((out / f"losses-{rank}.json").read_text()) for rank in range(world)]
    assert all(log == logs[0] for log in logs), "every rank reports the whole step"
    return gradients, logs[0]["losses"], logs[0]["norms"]


def apart(one: Sequence[float], two: Sequence[float]) -> float:
    """Largest relative difference."""
    return max(abs(a - b) / abs(a) for a, b in zip(one, two, strict=True))


@pytest.fixture(scope="module")
def alone(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[dict[str, Tensor], list[float], list[float]]:
    return train(folder, tmp_path_factory.mktemp("ranks") / "alone", 1, 256)


@pytest.mark.parametrize(("world", "max_tokens"), [(2, 64), (1, 64)])
def test_ranks_and_micro_batches_change_nothing(
    folder: Path,
    tmp_path: Path,
    alone: tuple[dict[str, Tensor], list[float], list[float]],
    world: int,
    max_tokens: int,
) -> None:
    gradients, losses, norms = train(folder, tmp_path / "other", world, max_tokens)
    wanted, wanted_losses, wanted_norms = alone
    assert gradients.keys() == wanted.keys()
    for name, gradient in wanted.items():
        assert (gradients[name] - gradient).norm() <= 1e-5 * gradient.norm(), name
    assert len(losses) == STEPS
    assert apart(wanted_losses, losses) < 1e-5
    assert apart(wanted_norms, norms) < 1e-5
    if world == 2:  # whole tensors by name: any number of ranks goes on from them
        learner = Learner(folder, LearnerConfig())
        learner.load(tmp_path / "other" / "checkpoint")
        assert learner.steps == STEPS
        assert all(torch.isfinite(p).all() for p in learner.model.parameters())
