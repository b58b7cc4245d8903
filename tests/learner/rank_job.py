"""One learner rank in a process of its own: `python -m tests.learner.rank_job FOLDER RANK WORLD STEPS MAX_TOKENS OUT`.

Trains on the same stored batches whatever the number of ranks, and leaves losses and first gradients in OUT.
"""

import json
import sys
from pathlib import Path

import torch
from safetensors.torch import save_file

from k3rl.algorithms.objectives import GRPO
from k3rl.learner.config import LearnerConfig
from k3rl.learner.learner import Learner
from tests.learner.nano import rollouts

LENGTHS = ([37, 12, 25, 40, 9, 31, 18, 22, 35], [60], [14, 15, 50, 8], [33, 34, 35])


def main(folder: Path, rank: int, world: int, steps: int, max_tokens: int, out: Path) -> None:
    torch.set_num_threads(1)
    batches = [rollouts(folder, lengths, seed=i + 10, shift=0.02) for i, lengths in enumerate(LENGTHS)]
    config = LearnerConfig(max_tokens=max_tokens, learning_rate=2e-5, threads=1, deadline_seconds=120)
    learner = Learner(folder, config, rank=rank, world=world, rendezvous=f"file://{out / 'meet'}")
    objective = GRPO(clip_low=0.9, clip_high=9.0)  # wide: no step may be left without a gradient
    losses, norms = [], []
    for step in range(steps):
        if step == 0:
            _save_gradients(learner, out / f"gradients-{rank}.safetensors")
        metrics = learner.step(batches[step % len(batches)], objective)
        losses.append(metrics["loss"])
        norms.append(metrics["grad_norm"])
    learner.save(out / "checkpoint")
    (out / f"losses-{rank}.json").write_text(json.dumps({"losses": losses, "norms": norms}))


def _save_gradients(learner: Learner, path: Path) -> None:
    """Write this rank's share of the first step's gradients, just before its update."""
    update = learner.sharded.step

    def step(scale: float) -> float:
        save_file(learner.sharded.gradients(), path)
        learner.sharded.step = update  # type: ignore[method-assign]
        return update(scale)

    learner.sharded.step = step  # type: ignore[method-assign]


if __name__ == "__main__":
    main(Path(sys.argv[1]), *map(int, sys.argv[2:6]), Path(sys.argv[6]))
