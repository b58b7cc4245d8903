"""The commands' bodies: put the parts of a job together, run it, report."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

from rich.console import Console

from k3rl.cluster import cluster
from k3rl.config import Config, RaySection
from k3rl.errors import ConfigError
from k3rl.evaluation.evaluate import evaluate, evaluation_specs
from k3rl.evaluation.picture import curves, draw
from k3rl.evaluation.report import comparison, evaluation, summary
from k3rl.evaluation.results import read_results, results_folder, write_results
from k3rl.evaluation.statistics import TaskResult
from k3rl.evaluation.tables import show
from k3rl.learner.group import LearnerGroup, Stage
from k3rl.model_folder import model_config, model_folder, model_name, tokenizer_folder
from k3rl.observability.histogram import merged, quantile
from k3rl.observability.metrics import read_metrics
from k3rl.observability.progress import Bar, waiting
from k3rl.orchestrator import Job
from k3rl.rollout.pool import RolloutPool
from k3rl.run_folder import RunFolder, write_atomically

SETUP_SECONDS = "K3RL_SETUP_SECONDS"
"""Environment variable by which launch/quickstart tells how long launch/setup took, nearly all of it downloads."""


def train(config: Config) -> dict[str, Any] | None:
    """`k3rl train`: run or resume the job of `config.run_dir`; its summary, if it evaluates."""
    base = trained_model(config)
    console = Console()
    asked = {"steps": config.train.steps, "seconds": config.train.seconds}
    with RunFolder(config.run_dir) as folder:
        folder.store_config(config)
        if folder.read_json("done.json") == asked:
            console.print(f"{folder.path} is finished; a larger train.steps continues it, another run_dir starts anew")
            return folder.read_json("summary.json")
        began = time.monotonic()
        with running_cluster(config.ray), rollout_pool(config, base) as pool:
            learner = LearnerGroup(config, base, rl_stage(config))
            job = Job(config, folder, pool, learner)
            job.clock.add("start", time.monotonic() - began)
            job.run()
            with waiting("exporting the model"):
                learner.export(folder.path / "model")
            learner.close()
            seconds = dict(job.clock.seconds)
        result = report(config, folder, seconds, console) if config.train.evaluate else None
        folder.store_json("done.json", asked)
        return result


def trained_model(config: Config) -> Path:
    """The folder of `model.path`. A preset has no weights yet: asking for one is an error, not a silent default."""
    if config.model.preset:
        raise ConfigError(
            f"model.preset={config.model.preset}: only `k3rl sft` starts from nothing; train or evaluate a folder with "
            "model.path, and leave model.preset empty"
        )
    return model_folder(config.model.path)


def rl_stage(config: Config) -> Stage:
    """The learner's orders for a joint RL job."""
    return Stage(
        objective=config.algorithm.objective,
        learning_rate=config.learner.learning_rate,
        schedule=config.learner.schedule,
        warmup=config.learner.warmup_steps,
        steps=config.train.steps,
        expert_rate=config.learner.expert_rate,
    )


@contextmanager
def running_cluster(settings: RaySection) -> Iterator[None]:
    """`cluster`, with a word while it starts."""
    with ExitStack() as stack:
        with waiting("starting Ray"):
            stack.enter_context(cluster(settings))
        yield


@contextmanager
def rollout_pool(config: Config, model: Path | None) -> Iterator[RolloutPool]:
    """Rollout actors, closed at the end. `model` None: episode workers only, for scripted players."""
    pool = RolloutPool(
        config.rollout,
        config.environment,
        tokenizer=str(model or tokenizer_folder(config.model.tokenizer)),
        model_config=model_config(model) if model else None,
        variants=config.sft.variants,
    )
    try:
        yield pool
    finally:
        pool.close()


def report(config: Config, folder: RunFolder, seconds: dict[str, float], console: Console) -> dict[str, Any]:
    """summary.json, the table and the picture of a finished run."""
    before = read_results(folder.path / "evaluation" / "before.jsonl")
    after = read_results(folder.path / "evaluation" / "after.jsonl")
    metrics = read_metrics(folder.metrics)
    measured = [m for m in metrics if m.get("mismatch/n")]
    tokens = max(sum(m["tokens"] for m in measured), 1)
    result = summary(
        before,
        after,
        seconds=sum(seconds.values()),
        phases=seconds,
        setup=float(os.environ.get(SETUP_SECONDS, 0)),
        mismatch=whole_mismatch(metrics),
        routes_differ=sum(m["routes_differ"] * m["tokens"] for m in measured) / tokens,
        selections_differ=sum(m["selections_differ"] * m["tokens"] for m in measured) / tokens,
        steps=metrics[-1]["step"] if metrics else 0,
        seed=config.seed,
    )
    folder.store_json("summary.json", result)
    draw(
        folder.path / "success.png",
        result,
        curves(metrics, "success/"),
        title=f"{config.name}: success on unseen tasks",
    )
    show(result, console)
    console.print(f"{folder.path / 'summary.json'}\n{folder.path / 'success.png'}", highlight=False, soft_wrap=True)
    return result


def whole_mismatch(metrics: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """|log p_rollout - log p_learner| over all tokens of a run that were measured: the weights' versions change every
    step, and every step measured its own before its update. `p99` is exact to the width of a histogram's bin."""
    measured = [m for m in metrics if m.get("mismatch/n")]
    total = sum(m["mismatch/n"] for m in measured)
    return {
        "of": "sampled tokens with entropy over 0.1, in episodes with a learning signal, before each step's update",
        "mean": sum(m["mismatch/mean"] * m["mismatch/n"] for m in measured) / max(total, 1),
        "p99": quantile(merged(m["mismatch/histogram"] for m in measured), 0.99),
        "max": max((m["mismatch/max"] for m in measured), default=0.0),
        "n": total,
    }


def evaluate_model(config: Config) -> dict[str, Any]:
    """`k3rl eval`: evaluate `model.path`; with `evaluation.compare` a second model on the same tasks, paired.

    Results by task and report.json go to `evaluation.output`, or to a folder named after the models beside `run_dir`.
    """
    models = [trained_model(config)]
    if config.evaluation.compare:
        models.append(model_folder(config.evaluation.compare))
    name = "-".join(["eval", *map(model_name, models)])
    output = results_folder(Path(config.evaluation.output or Path(config.run_dir).with_name(name)))
    console = Console()
    with running_cluster(config.ray):
        results = [
            evaluate_folder(config, model, output / file)
            for model, file in zip(models, ("results.jsonl", "compared.jsonl"), strict=False)
        ]
    settings = asdict(config.evaluation)
    result = {
        "models": list(map(str, models)),
        "settings": settings,
        **(comparison(*results) if len(results) > 1 else evaluation(*results)),
    }
    write_atomically(output / "report.json", json.dumps(result, indent=1).encode())
    show(result, console)
    console.print(str(output / "report.json"), highlight=False, soft_wrap=True)
    return result


def evaluate_folder(config: Config, model: Path, output: Path) -> list[TaskResult]:
    """Play the configured evaluation with one model folder; results go to `output` and are returned."""
    with rollout_pool(config, model) as pool:
        learner = LearnerGroup(config, model, rl_stage(config))
        with waiting("verifying the weights in the engines"):
            pool.publish(learner.publication(version=0))
        learner.close()
        specs = evaluation_specs(config.evaluation, pool.levels)
        with Bar(f"evaluation of {model.name}", len(specs)) as bar:
            limit = config.rollout.fault_limit
            results = evaluate(pool, specs, lambda group: bar.advance(), fault_limit=limit)
    write_results(output, results)
    return results
