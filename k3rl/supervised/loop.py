"""`k3rl sft`: stages of supervised training, one after another, resumable at any step.

Every stage has its own optimizer and starts from the model the stage before left (`stages/<n>-<name>/`, fp32 masters).
The last one is exported with packed experts to `model/`, and evaluated like any model.
"""

from __future__ import annotations

import time
from functools import cached_property
from pathlib import Path

from rich.console import Console

from k3rl.chat import XtmlRenderer, load_tokenizer
from k3rl.clock import Clock
from k3rl.config import Config, StageSection
from k3rl.errors import UserError
from k3rl.evaluation.report import evaluation
from k3rl.evaluation.results import read_results
from k3rl.evaluation.tables import show
from k3rl.jobs import evaluate_folder, rollout_pool, running_cluster
from k3rl.learner.checkpoint import verify
from k3rl.learner.group import LearnerGroup, Stage
from k3rl.model_folder import model_folder
from k3rl.observability.alarms import StillExperts
from k3rl.observability.metrics import MetricsLog
from k3rl.observability.progress import Bar, waiting
from k3rl.run_folder import RunFolder
from k3rl.supervised.data import stage_batches
from k3rl.supervised.demonstrations import Rendered, generate, load_demonstrations, missing_shards, render
from k3rl.supervised.start import initial_model
from k3rl.types import Json


def run(config: Config) -> None:
    """All stages, from wherever the run folder stands; then export and evaluation."""
    if not config.sft.stages:
        raise UserError("sft.stages is empty: choose an experiment that has stages, e.g. experiment=nano_base")
    for stage in config.sft.stages:
        if stage.source == "folder" and not Path(stage.path).exists():
            raise UserError(f"sft stage {stage.name}: path={stage.path}: no such file or folder")
    with RunFolder(config.run_dir) as folder, running_cluster(config.ray):
        stage, step = standing(folder)
        folder.store_config(config, stage=stage, step=step)
        clock = Clock(folder)
        if any(stage.source == "solutions" for stage in config.sft.stages):
            with clock.timed("demonstrations"):
                demonstrate(config, folder.path / "demonstrations")
        start = (
            initial_model(config, folder.path / "initial") if config.model.preset else model_folder(config.model.path)
        )
        trained = _Stages(config, folder, clock, start).run()
        if config.train.evaluate:
            after = folder.path / "evaluation" / "after.jsonl"
            if not after.exists():
                with clock.timed("evaluation"):
                    evaluate_folder(config, trained, after)
            result = evaluation(read_results(after))
            seconds = {"seconds": sum(clock.seconds.values()), "seconds_by_phase": dict(clock.seconds)}
            folder.store_json("summary.json", {**seconds, **result})
            show(result, Console())


def demonstrate(config: Config, folder: Path) -> None:
    """Have the demonstrations; sandboxes are only started if some are missing."""
    count = config.sft.demonstrations
    if not missing_shards(folder, count * len(config.environment)):
        return
    with rollout_pool(config, None) as pool:
        generate(pool, folder, count, config.seed)


class _Stages:
    """The run's place: which stage, which step of it; `done` counts steps over all stages."""

    def __init__(self, config: Config, folder: RunFolder, clock: Clock, start: Path) -> None:
        self.config, self.folder, self.clock, self.start = config, folder, clock, start
        self.metrics = MetricsLog(folder.metrics)
        self.renderer = XtmlRenderer(load_tokenizer(start))

    @cached_property
    def solutions(self) -> list[Rendered]:
        """The demonstrations, rendered once for all stages: with many of them that takes minutes."""
        with self.clock.timed("rendering"):
            with waiting("reading the demonstrations"):
                stored = load_demonstrations(self.folder.path / "demonstrations")
            return render(stored, self.renderer)

    def run(self) -> Path:
        stages = self.config.sft.stages
        first, step, checkpoint = self._resume()
        model = self.folder.path / "model"
        if first < len(stages):  # what an earlier end of this run left is about to be out of date
            (self.folder.path / "evaluation" / "after.jsonl").unlink(missing_ok=True)
        elif not model.exists():
            raise UserError(
                f"sft.stages: all {len(stages)} are done, and none of them was the last before: name one to follow them"
            )
        for place in range(first, len(stages)):
            learner = LearnerGroup(self.config, self._before(place), learner_stage(self.config, stages[place]))
            if checkpoint is not None:
                learner.load(checkpoint)
            self._train(place, step, learner)
            last = place + 1 == len(stages)
            learner.export(self._after(place), packed=False)
            if last:
                learner.export(model)
            self._checkpoint(place + 1, 0, None)
            learner.close()
            step, checkpoint = 0, None
        return model

    def _train(self, place: int, start: int, learner: LearnerGroup) -> None:
        stage = self.config.sft.stages[place]
        batches = stage_batches(self.config, stage, self.renderer, lambda: self.solutions)
        done = sum(s.steps for s in self.config.sft.stages[:place])
        alarm = StillExperts(stage.learning_rate)
        with Bar(stage.name, stage.steps, done=start) as bar:
            for step in range(start, stage.steps):
                began = time.monotonic()
                samples = batches(step)
                metrics = learner.train_samples(samples, step=step)
                if stage.train == "model":  # the indexer is trained alone: experts stand still then
                    alarm.look(metrics, f"stage {stage.name}, step {step + 1}")
                tokens = sum(len(sample.tokens) for sample in samples)
                seconds = time.monotonic() - began
                self.clock.add(f"stage {stage.name}", seconds)
                speed = {"time/step": seconds, "time/tokens_per_second": tokens / seconds}
                self.metrics.append(done + step + 1, {"stage": stage.name, **metrics, **speed})
                bar.advance(note=f"loss {metrics['loss']:.3f}")
                # The stage's own end is kept as a model folder; a checkpoint of the same step is never written twice.
                if (step + 1) % self.config.train.checkpoint_every == 0 and step + 1 < stage.steps:
                    self._checkpoint(place, step + 1, learner)

    def _checkpoint(self, place: int, step: int, learner: LearnerGroup | None) -> None:
        """`learner` None: the stage is over, and its model folder is all there is to keep."""
        done = sum(s.steps for s in self.config.sft.stages[:place]) + step
        state = {"stage": place, "step": step}
        self.folder.save_checkpoint(
            done, state, learner.save if learner else _nothing, self.config.train.keep_checkpoints
        )

    def _resume(self) -> tuple[int, int, Path | None]:
        found = self.folder.newest_checkpoint(check_learner)
        if found is None:
            self.metrics.truncate(0)
            return 0, 0, None
        learner_folder, state = found
        place, step = state["stage"], state["step"]
        self.metrics.truncate(sum(s.steps for s in self.config.sft.stages[:place]) + step)
        return place, step, learner_folder if step else None

    def _before(self, place: int) -> Path:
        return self.start if place == 0 else self._after(place - 1)

    def _after(self, place: int) -> Path:
        return self.folder.path / "stages" / f"{place}-{self.config.sft.stages[place].name}"


def standing(folder: RunFolder) -> tuple[int, int]:
    """Place and step of the stage that the run stands at; step 0 has nothing of that stage yet."""
    found = folder.newest_checkpoint(lambda learner, state: None)
    return (found[1]["stage"], found[1]["step"]) if found else (0, 0)


def learner_stage(config: Config, stage: StageSection) -> Stage:
    """The learner's orders for one stage."""
    return Stage(
        objective="sft",
        learning_rate=stage.learning_rate,
        schedule=stage.schedule,
        warmup=min(config.learner.warmup_steps, stage.steps - 1),
        steps=stage.steps,
        train=stage.train,
        sparse=stage.sparse,
        quantize=stage.quantize,
        balance_rate=config.sft.balance_rate,
        expert_rate=config.learner.expert_rate,
    )


def check_learner(folder: Path, state: Json) -> None:
    """Raises CheckpointError if a learner's part is damaged; a stage that has not begun has none."""
    if state["step"]:
        verify(folder)


def _nothing(folder: Path) -> None:
    """A finished stage keeps no optimizer."""
