"""The learner's ranks as Ray actors, and the driver's handle on all of them.

Ranks fetch trajectories from the object store themselves; the driver sends references and advantages.
"""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import ray
from ray.exceptions import GetTimeoutError, RayActorError, RayTaskError

from k3rl.config import Config
from k3rl.errors import DeadlineError, InfrastructureError, K3rlError
from k3rl.learner.stage import Stage
from k3rl.observability.progress import waiting
from k3rl.types import Sample, Scored

__all__ = ["LearnerGroup", "LearnerRank", "Stage"]

WAIT_SECONDS = 1800.0
CANARY_TOKENS = 72  # past nano's sparse top-k, so that its indexer takes part; engines decode them for every version

# glibc returns freed tensors to the kernel and faults them in again; keeping them is up to 1.5 times faster on CPUs.
KEEP_MEMORY = {"MALLOC_MMAP_MAX_": "0", "MALLOC_TRIM_THRESHOLD_": "68719476736"}


class LearnerRank:
    """One rank; made a Ray actor by `LearnerGroup`."""

    def __init__(self, config: Config, model_folder: str, stage: Stage, rank: int) -> None:
        self._config, self._model_folder, self._stage, self._rank = config, model_folder, stage, rank
        self._meeting_point: Any = None

    def address(self) -> str:
        """Where the ranks meet, if this is rank 0: the port is bound here and kept, nobody else can take it."""
        from k3rl.learner.zero import meeting_point

        self._meeting_point = meeting_point(self._config.learner.ranks)
        return f"tcp://{ray.util.get_node_ip_address()}:{self._meeting_point.port}"

    def start(self, rendezvous: str) -> None:
        """Join the other ranks and load the model."""
        from k3rl.learner.learner import Learner
        from k3rl.learner.orders import learner_config, make_objective, make_schedule

        self._objective = make_objective(self._config, self._stage)
        self._schedule = make_schedule(self._stage)
        self._learner = Learner(
            self._model_folder,
            learner_config(self._config, self._stage),
            rank=self._rank,
            world=self._config.learner.ranks,
            rendezvous=self._meeting_point or rendezvous,
        )

    def train_trajectories(self, groups: Sequence[Any], advantages: Sequence[Sequence[float]], step: int) -> Any:
        """One optimizer step (`step` counts from 0) on scored trajectories; `groups` are references to lists of
        Scored."""
        from k3rl.learner.samples import to_samples

        fetched: list[list[Scored]] = ray.get(list(groups))
        # A group without spread, or a failure in rejection sampling, has no signal. It is left out of the loss's
        # denominator as well (as DAPO's dynamic sampling does): a step is as large where few groups are mixed.
        per_sequence = self._config.algorithm.loss_mean == "sequence"
        samples = [
            sample
            for group, signals in zip(fetched, advantages, strict=True)
            for scored, advantage in zip(group, signals, strict=True)
            if advantage != 0
            for sample in to_samples(scored, advantage, per_sequence=per_sequence)
        ]
        return self.train_samples(samples, step)

    def train_samples(self, samples: Sequence[Sample], step: int) -> dict[str, Any]:
        """One optimizer step on ready samples. A step lost or taken twice is an error."""
        if step != self._learner.steps:
            raise InfrastructureError(f"the driver has seen {step} optimizer steps, the learner {self._learner.steps}")
        rate = self._schedule.rate(step)
        if self._stage.train == "indexer":
            metrics = self._learner.warm_up_indexer(samples, rate)
        else:
            metrics = self._learner.step(samples, self._objective, rate)
        return {"time/learner" if name == "seconds" else name: value for name, value in metrics.items()}

    def publication(self, version: int) -> Any:
        """The weights as they are now, with a canary prompt spread over the vocabulary."""
        vocabulary = self._learner.model.config.vocab_size
        canary = [place * 131 % vocabulary for place in range(1, CANARY_TOKENS + 1)]
        return self._learner.publication(version, canary)

    def save(self, folder: str) -> None:
        """A checkpoint; all ranks take part, rank 0 writes."""
        self._learner.save(folder)

    def load(self, folder: str) -> None:
        """Go on from a checkpoint. Raises CheckpointError."""
        self._learner.load(folder)

    def export(self, folder: str, packed: bool) -> None:
        """A model folder in the hub's layout; routed experts as MXFP4 bytes, or as fp32 masters."""
        self._learner.export(folder, packed=packed)


class LearnerGroup:
    """All ranks, called together."""

    def __init__(self, config: Config, model_folder: Path, stage: Stage) -> None:
        threads = str(config.learner.threads)
        env = {"OMP_NUM_THREADS": threads, "MKL_NUM_THREADS": threads, **KEEP_MEMORY}
        actor = ray.remote(LearnerRank).options(num_cpus=0, runtime_env={"env_vars": env})
        self._ranks = [actor.remote(config, str(model_folder), stage, rank) for rank in range(config.learner.ranks)]
        with waiting("loading the model for the learner"):
            self._all("start", self._wait([self._ranks[0].address.remote()], "start")[0])

    def train(self, groups: Sequence[Any], advantages: Sequence[Sequence[float]], *, step: int) -> dict[str, Any]:
        """Optimizer step number `step` (from 0) on trajectories; metrics of the whole step."""
        return self._all("train_trajectories", groups, advantages, step)

    def train_samples(self, samples: Sequence[Sample], *, step: int) -> dict[str, Any]:
        """One optimizer step on samples."""
        return self._all("train_samples", ray.put(list(samples)), step)

    def publication(self, *, version: int) -> Any:
        """A reference to the Publication of the weights as they are; every rank takes part, rank 0 holds it."""
        references = [rank.publication.remote(version) for rank in self._ranks]
        self._wait(references, f"publish version {version}")
        return references[0]

    def save(self, folder: Path) -> None:
        """Write the learner's part of a checkpoint."""
        self._all("save", str(folder))

    def load(self, folder: Path) -> None:
        """Go on from `folder`."""
        self._all("load", str(folder))

    def export(self, folder: Path, *, packed: bool = True) -> None:
        """Write a model folder; one that stands there is replaced, and whole until the new one is."""
        fresh = folder.with_name(f".{folder.name}.new")
        shutil.rmtree(fresh, ignore_errors=True)
        fresh.parent.mkdir(parents=True, exist_ok=True)
        self._all("export", str(fresh), packed)
        shutil.rmtree(folder, ignore_errors=True)
        fresh.rename(folder)

    def close(self) -> None:
        """End the ranks."""
        for rank in self._ranks:
            ray.kill(rank)

    def _all(self, method: str, *arguments: Any) -> Any:
        return self._wait([getattr(rank, method).remote(*arguments) for rank in self._ranks], method)[0]

    def _wait(self, references: list[Any], what: str) -> list[Any]:
        try:
            return list(ray.get(references, timeout=WAIT_SECONDS))
        except GetTimeoutError as error:
            raise DeadlineError(f"waited {WAIT_SECONDS:g} s for the learner to {what}") from error
        except RayActorError as error:
            raise InfrastructureError(
                f"a learner rank died during {what} (out of memory?); the same command resumes from the last checkpoint"
            ) from error
        except RayTaskError as error:
            if isinstance(error.cause, K3rlError):
                raise error.cause from error
            raise
