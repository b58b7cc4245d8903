"""The joint RL job: draw groups, play them, advantages, one optimizer step, publish, checkpoint, again.

The driver holds references only: trajectories go from the rollout actors to the learner through the object store.
Everything that decides what comes next is in `JobState`, and a checkpoint holds all of it.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from k3rl.algorithms.advantages import AdvantageConfig, DomainScale, Group, joint_advantages
from k3rl.clock import Clock
from k3rl.config import Config
from k3rl.evaluation.evaluate import evaluate, evaluation_specs
from k3rl.evaluation.results import read_results, write_results
from k3rl.learner.checkpoint import verify
from k3rl.learner.group import LearnerGroup
from k3rl.observability.alarms import StillExperts, tell_mismatch
from k3rl.observability.metrics import MetricsLog
from k3rl.observability.progress import Bar, waiting
from k3rl.observability.tracker import Tracker
from k3rl.observability.trajectories import truncate_trajectories
from k3rl.rollout.curriculum import Curriculum, CurriculumState, from_json, to_json
from k3rl.rollout.faults import tell_faults
from k3rl.rollout.pool import GroupResult, Recording, RolloutPool
from k3rl.run_folder import RunFolder
from k3rl.types import Json


@dataclass(frozen=True, kw_only=True, slots=True)
class JobState:
    """The driver's side of a consistent cut: steps trained, curriculum with its cursors, scales."""

    step: int
    curriculum: CurriculumState
    scale: DomainScale

    def to_json(self) -> Json:
        return {"step": self.step, "curriculum": to_json(self.curriculum), "scale": self.scale.to_json()}

    @classmethod
    def from_json(cls, plain: Json) -> JobState:
        return cls(
            step=plain["step"],
            curriculum=from_json(plain["curriculum"]),
            scale=DomainScale.from_json(plain["scale"]),
        )


class Job:
    """One run: its folder, its actors, its state. Put together by `k3rl.jobs.train`."""

    def __init__(self, config: Config, folder: RunFolder, pool: RolloutPool, learner: LearnerGroup) -> None:
        self.config, self.folder, self.pool, self.learner = config, folder, pool, learner
        self.curriculum = Curriculum(settings=config.curriculum, levels=pool.levels, seed=config.seed)
        self.rules = AdvantageConfig(
            divide_by_std=config.algorithm.divide_by_std,
            domain_scaling=config.algorithm.domain_scaling,
            decay=config.algorithm.domain_scaling_decay,
            floor=config.algorithm.domain_scaling_floor,
            skip_truncated=config.algorithm.truncated == "skip",
        )
        self.clock = Clock(folder)
        self._saved = -1  # step of the newest whole checkpoint
        self.state = self._resume()
        self.metrics = MetricsLog(folder.metrics)
        self.metrics.truncate(self.state.step)
        truncate_trajectories(folder.path / "trajectories", self.state.step)
        self.tracker = Tracker(
            folder.path / "wandb",
            config.log.wandb,
            project=config.log.project,
            name=config.name,
            config=asdict(config),
        )
        self._recording: Recording | None = None  # trajectories being written
        self._alarm = StillExperts(config.learner.learning_rate)

    def run(self) -> None:
        """From wherever the run stands to its end."""
        with waiting("verifying the weights in the engines"):
            self.publish()
        if self.config.train.evaluate and self.state.step == 0:
            self.evaluate("before")
        if not self.finished():  # what an earlier end of this run left is about to be out of date
            for name in ("evaluation/after.jsonl", "done.json"):
                (self.folder.path / name).unlink(missing_ok=True)
        limit = self.config.train.seconds
        with Bar("training", self.expected_steps(), done=self.state.step) as bar:
            while not self.finished():
                metrics = self.train_step()
                apart = f", mismatch {metrics['mismatch/mean']:.1g}" if metrics.get("mismatch/n") else ""
                clock = f", {self.training_seconds():.0f} of {limit:g} s" if limit else ""
                bar.advance(note=f"success {metrics['success']:.0%}{apart}{clock}", total=self.expected_steps())
        self.checkpoint()
        self.tracker.finish()
        if self.config.train.evaluate:
            self.evaluate("after")

    def finished(self) -> bool:
        """Out of steps, or of the time that training may take."""
        limit = self.config.train.seconds
        return self.state.step >= self.config.train.steps or (limit > 0 and self.training_seconds() >= limit)

    def training_seconds(self) -> float:
        """What counts towards `train.seconds`."""
        return sum(self.clock.seconds[phase] for phase in ("rollout", "learn", "publish", "checkpoint"))

    def expected_steps(self) -> int | None:
        """How many steps the run will have at its end, if steps go on to take as long; None before the first."""
        limit, spent, step = self.config.train.seconds, self.training_seconds(), self.state.step
        if not limit:
            return self.config.train.steps
        return min(self.config.train.steps, max(step, math.ceil(step * limit / spent))) if step else None

    def train_step(self) -> dict[str, Any]:
        """One optimizer step on fresh groups, its publication, and a checkpoint where one is due."""
        rollout, step = self.config.rollout, self.state.step + 1
        specs, curriculum = self.curriculum.draw(
            self.state.curriculum,
            step=step,
            groups=rollout.tasks_per_step,
            samples=rollout.samples_per_task,
            temperature=rollout.temperature,
        )
        with self.clock.timed("rollout"):
            groups = self.pool.run(specs)
        episodes = [episode for group in groups for episode in group.episodes]
        tell_faults(episodes, f"step {step}", rollout.fault_limit)
        advantages, scale = self.advantages(groups)
        with self.clock.timed("learn"):
            learned = self.learner.train([g.trajectories for g in groups], advantages, step=step - 1)
        self._alarm.look(learned, f"step {step}")
        tell_mismatch(learned, f"step {step}")
        self.state = replace(
            self.state, step=step, curriculum=self.curriculum.update(curriculum, episodes), scale=scale
        )
        self.publish()
        self.record(groups, advantages)
        clock = {f"time/{phase}": seconds for phase, seconds in self.clock.seconds.items()}
        metrics = {**step_metrics(groups), **learned, **clock}
        self.tracker.log(self.metrics.append(step, metrics))
        if step % self.config.train.checkpoint_every == 0:
            self.checkpoint()
        return metrics

    def advantages(self, groups: Sequence[GroupResult]) -> tuple[list[list[float]], DomainScale]:
        """One advantage per episode; for rejection sampling 1 on a success and 0 elsewhere."""
        if self.config.algorithm.objective == "rejection":
            return [[float(e.success) for e in group.episodes] for group in groups], self.state.scale
        scored = [
            Group(
                domain=g.spec.domain,
                rewards=tuple(e.reward for e in g.episodes),
                truncated=tuple(e.stop.truncated for e in g.episodes),
            )
            for g in groups
        ]
        advantages, scale = joint_advantages(scored, self.state.scale, self.rules)
        return [list(map(float, a)) for a in advantages], scale

    def record(self, groups: Sequence[GroupResult], advantages: Sequence[Sequence[float]]) -> None:
        """Write the step's trajectories beside the next step's work."""
        self.wait_for_records()
        if self.config.log.trajectories:
            path = str(self.folder.trajectories(self.state.step))
            self._recording = self.pool.record(
                groups, advantages, path=path, step=self.state.step, run=self.config.name
            )

    def wait_for_records(self) -> None:
        """Until the trajectories of every step so far are on disk."""
        if self._recording is not None:
            recording, self._recording = self._recording, None
            recording.wait()

    def publish(self) -> None:
        """Hand the learner's weights to the policy workers, as version = steps trained."""
        with self.clock.timed("publish"):
            self.pool.publish(self.learner.publication(version=self.state.step))

    def checkpoint(self) -> None:
        """A consistent cut of learner and driver; does nothing where this step has one."""
        if self.state.step == self._saved:
            return
        with self.clock.timed("checkpoint"):
            self.wait_for_records()
            keep = self.config.train.keep_checkpoints
            self.folder.save_checkpoint(self.state.step, self.state.to_json(), self.learner.save, keep)
        self._saved = self.state.step

    def evaluate(self, name: str) -> None:
        """Results by task to evaluation/<name>.jsonl, unless they are there already."""
        path = self.folder.path / "evaluation" / f"{name}.jsonl"
        if path.exists():
            read_results(path)
            return
        specs = evaluation_specs(self.config.evaluation, self.pool.levels)
        with self.clock.timed(f"evaluate_{name}"), Bar(f"evaluation {name}", len(specs)) as bar:
            limit = self.config.rollout.fault_limit
            results = evaluate(self.pool, specs, lambda group: bar.advance(), fault_limit=limit)
        write_results(path, results)

    def _resume(self) -> JobState:
        found = self.folder.newest_checkpoint(lambda learner, state: verify(learner))
        if found is None:
            return JobState(step=0, curriculum=self.curriculum.start(), scale=DomainScale())
        learner_folder, plain = found
        self.learner.load(learner_folder)
        state = JobState.from_json(plain)
        self._saved = state.step
        return state


def step_metrics(groups: Sequence[GroupResult]) -> dict[str, float]:
    """What the step's episodes say, over all and by domain. Shares are of episodes with a score; level/<domain> is the
    mean of the levels drawn."""
    by_domain: dict[str, list[Any]] = defaultdict(list)
    for group in groups:
        by_domain[group.spec.domain] += group.episodes
    metrics: dict[str, float] = {}
    for name, episodes in [("", [e for es in by_domain.values() for e in es]), *sorted(by_domain.items())]:
        at = f"/{name}" if name else ""
        told = [e for e in episodes if e.reward is not None]
        count = max(len(told), 1)
        metrics[f"success{at}"] = sum(e.success for e in told) / count
        metrics[f"malformed{at}"] = sum(e.malformed for e in told) / max(sum(e.turns for e in told), 1)
        metrics[f"turns{at}"] = sum(e.turns for e in told) / count
        metrics[f"context_tokens{at}"] = sum(e.context_tokens for e in told) / count
        metrics[f"sampled_tokens{at}"] = sum(e.sampled_tokens for e in told) / count
        metrics[f"faults{at}"] = len(episodes) - len(told)
    for name in sorted(by_domain):
        mine = [g for g in groups if g.spec.domain == name]
        rewards = [{e.reward for e in g.episodes if e.reward is not None} for g in mine]
        metrics[f"mixed_groups/{name}"] = sum(len(r) > 1 for r in rewards) / len(mine)
        metrics[f"level/{name}"] = sum(g.spec.level for g in mine) / len(mine)
    return metrics
