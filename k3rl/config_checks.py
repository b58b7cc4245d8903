"""What a configuration must hold before anything starts: refused in one line, with the arithmetic that shows it."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from k3rl.errors import ConfigError
from k3rl.types import SPLITS, Tier

if TYPE_CHECKING:
    from k3rl.config import Config


def check(config: Config) -> None:
    """Raises ConfigError for what cannot run."""
    _choice("algorithm.objective", config.algorithm.objective, ("grpo", "rejection"))
    _choice("learner.schedule", config.learner.schedule, ("constant", "cosine"))
    _choice("algorithm.loss_mean", config.algorithm.loss_mean, ("token", "sequence"))
    _choice("algorithm.truncated", config.algorithm.truncated, ("train", "skip"))
    _choice("curriculum.spread", config.curriculum.spread, ("curriculum", "uniform", "signal"))
    _choice("log.wandb", config.log.wandb, ("auto", "offline", "online", "disabled"))
    _choice("evaluation.split", config.evaluation.split, SPLITS)
    for tier in config.rollout.thinking:
        _choice("a tier of rollout.thinking", tier, tuple(Tier))
    if config.algorithm.divide_by_std and config.algorithm.domain_scaling:
        raise ConfigError(
            "algorithm.divide_by_std and algorithm.domain_scaling normalise the same thing twice: set one to false "
            "(domain_scaling keeps the size of a group's signal and equalises domains)"
        )
    learner, steps = config.learner, config.train.steps
    if learner.schedule == "cosine" and steps <= learner.warmup_steps:
        raise ConfigError(
            f"learner.schedule=cosine over train.steps={steps} has no step left after learner.warmup_steps="
            f"{learner.warmup_steps}: lower the warm-up, or train longer"
        )
    _check_counts(config)
    _check_learning(config)
    _check_batches(config)
    if not 0 < config.rollout.fault_limit <= 1:
        raise ConfigError(f"rollout.fault_limit={config.rollout.fault_limit:g}: a share above 0, at most 1")
    _check_deadlines(config)
    _check_curriculum(config)
    _check_shares("evaluation.levels", config.evaluation.levels)
    _known_domains("curriculum.weights", config.curriculum.weights, config)
    _known_domains("sft.shares", config.sft.shares, config)
    shares = {f"sft.shares.{domain}": share for domain, share in config.sft.shares.items()}
    _each(shares, lambda share: share > 0, "above 0")
    _check_stages(config)
    for name, temperature in (
        ("rollout.temperature", config.rollout.temperature),
        ("evaluation.temperature", config.evaluation.temperature),  # greedy is evaluated beside it
    ):
        if not 1e-3 <= temperature < math.inf:
            raise ConfigError(f"{name}={temperature}: samples need a finite temperature of at least 0.001")


def _check_stages(config: Config) -> None:
    for stage in config.sft.stages:
        at = f"sft stage {stage.name}"
        _choice(f"{at}: source", stage.source, ("copy", "format", "solutions", "folder"))
        _choice(f"{at}: train", stage.train, ("model", "indexer"))
        _choice(f"{at}: schedule", stage.schedule, ("constant", "cosine"))
        if stage.train == "indexer" and stage.sparse:
            raise ConfigError(f"{at}: train=indexer needs sparse=false: it learns from the attention to all positions")
        if stage.source == "folder" and not stage.path:
            raise ConfigError(f"{at}: source=folder needs a path: a folder or file with `messages`")
        if not all(0 <= chance < 1 for chance in stage.unfinished):
            chances = ", ".join(f"{chance:g}" for chance in stage.unfinished)
            raise ConfigError(f"{at}: unfinished=[{chances}]: each must be at least 0 and below 1")
        if stage.unfinished and stage.source != "solutions":
            raise ConfigError(f"{at}: unfinished is for source=solutions, not {stage.source}")


def _check_counts(config: Config) -> None:
    rollout, learner, train, evaluation = config.rollout, config.learner, config.train, config.evaluation
    counts = {
        "rollout.tasks_per_step": rollout.tasks_per_step,
        "rollout.samples_per_task": rollout.samples_per_task,
        "rollout.slots": rollout.slots,
        "rollout.policy_workers": rollout.policy_workers,
        "rollout.policy_threads": rollout.policy_threads,
        "rollout.episode_workers": rollout.episode_workers,
        "rollout.concurrent_episodes": rollout.concurrent_episodes,
        "learner.ranks": learner.ranks,
        "learner.threads": learner.threads,
        "curriculum.start_level": config.curriculum.start_level,
        "curriculum.max_level": config.curriculum.max_level,
        "train.keep_checkpoints": train.keep_checkpoints,
        "train.checkpoint_every": train.checkpoint_every,
        "evaluation.tasks": evaluation.tasks,
        "evaluation.samples": evaluation.samples,
        "sft.variants": config.sft.variants,
        **{f"level {level} of evaluation.levels": level for level in evaluation.levels},
        **{f"sft stage {stage.name}: steps": stage.steps for stage in config.sft.stages},
        **{f"sft stage {stage.name}: batch_tokens": stage.batch_tokens for stage in config.sft.stages},
    }
    if any(stage.source == "solutions" for stage in config.sft.stages):
        counts["sft.demonstrations"] = config.sft.demonstrations
    _each(counts, lambda value: value >= 1, "at least 1")
    unsigned = {
        "rollout.retries": rollout.retries,
        "train.steps": train.steps,
        "evaluation.heldout_tasks": evaluation.heldout_tasks,
        "learner.warmup_steps": learner.warmup_steps,
        "sft.demonstrations": config.sft.demonstrations,
        **{f"rollout.thinking.{tier}": tokens for tier, tokens in rollout.thinking.items()},
    }
    _each(unsigned, lambda value: value >= 0, "at least 0")


def _check_learning(config: Config) -> None:
    """What the learner, its objective and the advantages would refuse only once everything has started."""
    learner, algorithm, stages = config.learner, config.algorithm, config.sft.stages
    positive = {
        "learner.learning_rate": learner.learning_rate,
        "algorithm.clip_high": algorithm.clip_high,
        "algorithm.domain_scaling_floor": algorithm.domain_scaling_floor,
        **{f"sft stage {stage.name}: learning_rate": stage.learning_rate for stage in stages},
    }
    _each(positive, lambda value: 0 < value < math.inf, "above 0, and finite")
    unsigned = {
        "learner.weight_decay": learner.weight_decay,
        "learner.clip_gradient": learner.clip_gradient,
        "learner.expert_rate": learner.expert_rate,
        "train.seconds": config.train.seconds,
        "sft.balance_rate": config.sft.balance_rate,
        **{f"sft stage {stage.name}: prompt_weight": stage.prompt_weight for stage in stages},
    }
    _each(unsigned, lambda value: 0 <= value < math.inf, "at least 0, and finite")
    _each({"algorithm.clip_low": algorithm.clip_low}, lambda value: 0 < value < 1, "above 0 and below 1")
    decays = {f"learner.betas[{place}]": beta for place, beta in enumerate(learner.betas)}
    decays["algorithm.domain_scaling_decay"] = algorithm.domain_scaling_decay
    _each(decays, lambda value: 0 <= value < 1, "at least 0 and below 1")


def _check_batches(config: Config) -> None:
    rollout, learner = config.rollout, config.learner
    trajectories = rollout.tasks_per_step * rollout.samples_per_task
    if config.algorithm.objective == "grpo" and rollout.samples_per_task < 2:
        raise ConfigError(
            f"rollout.samples_per_task={rollout.samples_per_task}: GRPO needs at least 2 samples of a task for its "
            "baseline"
        )
    if trajectories < learner.ranks:
        raise ConfigError(
            f"tasks_per_step {rollout.tasks_per_step} x samples_per_task {rollout.samples_per_task} = {trajectories} "
            f"trajectories cannot be split over learner.ranks={learner.ranks}; raise the first two or lower the ranks"
        )
    if rollout.max_context < 2:
        raise ConfigError(f"rollout.max_context={rollout.max_context}: must be at least 2, a prompt and one token")
    if learner.micro_batch_tokens < rollout.max_context:
        raise ConfigError(
            f"learner.micro_batch_tokens={learner.micro_batch_tokens} is below rollout.max_context="
            f"{rollout.max_context}: one trajectory would not fit a micro-batch; raise the first or lower the second"
        )


def _check_deadlines(config: Config) -> None:
    """Whatever hangs in an episode must be told by the episode, before the driver gives up on its group."""
    rollout = config.rollout
    limits = {"turn_seconds": rollout.turn_seconds, "environment_seconds": rollout.environment_seconds}
    _each({f"rollout.{name}": seconds for name, seconds in limits.items()}, lambda seconds: seconds > 0, "above 0")
    attempts, longest = 1 + rollout.retries, max(limits.values())
    needed = attempts * (longest + rollout.environment_seconds)
    if rollout.deadline_seconds <= needed:
        raise ConfigError(
            f"rollout.deadline_seconds={rollout.deadline_seconds:g} is not above {attempts} attempts (1 + "
            f"rollout.retries) x ({longest:g} s for a turn or call that hangs + {rollout.environment_seconds:g} s to "
            f"close) = {needed:g} s; raise it, or lower rollout.turn_seconds or rollout.environment_seconds"
        )


def _check_curriculum(config: Config) -> None:
    (low, high), replay = config.curriculum.band, config.curriculum.replay
    if not 0 <= low < high <= 1:
        raise ConfigError(f"curriculum.band=[{low}, {high}]: needs 0 <= low < high <= 1")
    if not 0 <= replay <= 1:
        raise ConfigError(f"curriculum.replay={replay}: a share lies between 0 and 1")
    weights = {name: config.curriculum.weights.get(name, 1.0) for name in config.environment}
    if weights and (min(weights.values()) < 0 or sum(weights.values()) == 0):
        raise ConfigError(f"curriculum.weights={weights}: must be at least 0, and above 0 for one domain")


def _each(values: Mapping[str, float], holds: Callable[[float], bool], needs: str) -> None:
    for name, value in values.items():
        if not holds(value):
            raise ConfigError(f"{name}={value:g}: must be {needs}")


def _choice(name: str, value: str, allowed: tuple[str, ...]) -> None:
    if value not in allowed:
        raise ConfigError(f"{name}={value!r}: choose one of {', '.join(allowed)}")


def _known_domains(name: str, values: Mapping[str, float], config: Config) -> None:
    if unknown := ", ".join(sorted(set(values) - set(config.environment))):
        known = ", ".join(config.environment)
        raise ConfigError(f"{name} names {unknown}: not among environment ({known})")


def _check_shares(name: str, shares: Mapping[int, float]) -> None:
    total = sum(shares.values())
    if shares and (min(shares.values()) < 0 or abs(total - 1) > 1e-6):
        terms = " + ".join(f"{v:g}" for v in shares.values())
        raise ConfigError(f"{name}: shares must be at least 0 and sum to 1, but {terms} = {total:g}")
