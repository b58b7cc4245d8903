"""The schema of conf/: frozen dataclasses. Unknown keys, wrong types and what cannot run are refused in one line.

Hydra composes the files; `load` turns the result into a `Config` (pydantic checks the types, config_checks.py the
values). Units stand in names or comments.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar, dataclass_transform

from k3rl.config_checks import check
from k3rl.errors import ConfigError

T = TypeVar("T")


@dataclass_transform(frozen_default=True, kw_only_default=True, field_specifiers=(field,))
def section(cls: type[T]) -> type[T]:
    """A frozen, keyword-only dataclass whose unknown keys pydantic refuses."""
    cls.__pydantic_config__ = {"extra": "forbid"}  # type: ignore[attr-defined]
    return dataclass(frozen=True, kw_only=True)(cls)


@section
class ModelSection:
    """Where the weights come from: a folder in the hub's layout, `nano_base` (shipped), or a preset from nothing."""

    path: str = "nano_base"
    preset: str = ""  # e.g. "nano": start from random weights of this preset instead of `path`
    tokenizer: str = "nano"  # a folder, or "nano" (shipped); used with `preset` only, a model folder carries its own
    overrides: dict[str, Any] = field(default_factory=dict)  # fields of the preset to replace


@section
class RolloutSection:
    """How episodes are sampled. Trajectories of one optimizer step = tasks_per_step x samples_per_task."""

    tasks_per_step: int = 18
    samples_per_task: int = 8
    temperature: float = 1.0
    slots: int = 64  # decode rows of one engine
    max_context: int = 640  # tokens a slot can hold
    policy_workers: int = 1
    policy_threads: int = 1
    episode_workers: int = 1
    concurrent_episodes: int = 96  # per episode worker
    thinking: dict[str, int] = field(default_factory=lambda: {"low": 32, "high": 96, "max": 256})  # tokens per turn
    retries: int = 3  # of an episode that infrastructure broke
    fault_limit: float = 0.5  # share of a domain's episodes of one step that end the job if they fail, retries and all
    turn_seconds: float = 120.0  # longest wait for one turn of the policy
    environment_seconds: float = 60.0  # longest wait for one call of an environment (its open, step, score, ...)
    deadline_seconds: float = 900.0  # longest wait until any of the groups in flight is done


@section
class AlgorithmSection:
    """GRPO with asymmetric clip. One update per batch, so proximal = rollout: no mismatch correction applies."""

    objective: str = "grpo"  # grpo | rejection (supervised on the successes of the same rollouts)
    clip_low: float = 0.2
    clip_high: float = 0.28
    divide_by_std: bool = False
    loss_mean: str = "token"  # token | sequence (every trajectory weighs the same, however long)
    truncated: str = "train"  # train | skip (failures that ran into a limit count in the group's mean only)
    domain_scaling: bool = True  # running RMS of advantages by domain
    domain_scaling_floor: float = 0.1
    domain_scaling_decay: float = 0.9


@section
class LearnerSection:
    """DeepSpeed ZeRO 1 over `ranks` processes; the loss is normalised over the whole optimizer step."""

    ranks: int = 1
    threads: int = 2
    learning_rate: float = 3e-4
    warmup_steps: int = 5
    schedule: str = "constant"  # constant | cosine (over `train.steps`)
    betas: tuple[float, float] = (0.9, 0.95)
    weight_decay: float = 0.0
    clip_gradient: float = 1.0  # global norm
    micro_batch_tokens: int = 8192  # per rank
    expert_rate: float = 1.0  # learning rate of routed experts, relative; 0 freezes them
    dither: bool = True  # masters of MXFP4 experts start anywhere in their rounding cell


@section
class CurriculumSection:
    """Which domain and level the next group comes from."""

    weights: dict[str, float] = field(default_factory=dict)  # by domain; missing ones count 1
    start_level: int = 1
    band: tuple[float, float] = (0.2, 0.8)  # success below the first moves a level down, above the second up
    replay: float = 0.3  # share of groups from levels below the current one
    spread: str = "curriculum"  # curriculum | uniform (all levels alike) | signal (levels by how many groups differ)
    max_level: int = 99


@section
class TrainSection:
    """The loop: optimizer steps, checkpoints."""

    steps: int = 60
    seconds: float = 0.0  # stop after this much training time as well; 0: no limit
    checkpoint_every: int = 5
    keep_checkpoints: int = 2
    evaluate: bool = True  # before and after


@section
class EvaluationSection:
    """The test: `tasks` per domain drawn by `levels` (level: share; empty: all alike), each sampled `samples` times and
    once greedily."""

    split: str = "test"
    tasks: int = 200
    heldout_tasks: int = 50
    samples: int = 8
    temperature: float = 1.0
    levels: dict[int, float] = field(default_factory=dict)
    seed: int = 7
    compare: str = ""  # `k3rl eval`: a second model folder, paired by task
    output: str = ""  # `k3rl eval`: where the results go; default eval-MODEL beside run_dir


@section
class StageSection:
    """One stage of supervised training."""

    name: str = "solutions"
    source: str = "solutions"  # copy | format | solutions | folder
    path: str = ""  # with source=folder: a datasets folder, JSON lines or Parquet with `messages`, a run's trajectories
    steps: int = 1000
    batch_tokens: int = 4096
    learning_rate: float = 4e-3
    schedule: str = "cosine"
    prompt_weight: float = 0.0  # loss weight of given tokens
    sparse: bool = True  # False: full attention, before the indexer is trained
    train: str = "model"  # model | indexer
    quantize: bool = True  # QAT: multiply by the MXFP4 bytes
    unfinished: tuple[float, ...] = ()  # chance that a demonstrator stops before turn 0, 1, ...; the last for all later


@section
class SupervisedSection:
    """`k3rl sft`: demonstrations and stages."""

    demonstrations: int = 3000  # per domain, over all its training families and levels
    variants: int = 2  # phrasings of each solution drawn at random
    shares: dict[str, float] = field(default_factory=dict)  # times an epoch sees a domain's solutions; 1 if not named
    stages: tuple[StageSection, ...] = ()
    balance_rate: float = 1e-3  # gamma of the router bias' sign rule


@section
class LogSection:
    """Metrics beside the JSON lines."""

    wandb: str = "auto"  # auto (online if WANDB_API_KEY is set, else offline) | offline | online | disabled
    project: str = "k3rl"
    trajectories: bool = True


@section
class RaySection:
    """Where the cluster is: an address to join, or nothing to start one here."""

    address: str = ""
    object_store_mib: int = 300


@section
class Config:
    """Everything a command needs; stored resolved in the run folder."""

    name: str = "run"
    run_dir: str = "runs/run"
    seed: int = 0
    model: ModelSection = field(default_factory=ModelSection)
    environment: dict[str, Any] = field(default_factory=dict)  # by domain: `_target_` and its arguments
    rollout: RolloutSection = field(default_factory=RolloutSection)
    algorithm: AlgorithmSection = field(default_factory=AlgorithmSection)
    learner: LearnerSection = field(default_factory=LearnerSection)
    curriculum: CurriculumSection = field(default_factory=CurriculumSection)
    train: TrainSection = field(default_factory=TrainSection)
    evaluation: EvaluationSection = field(default_factory=EvaluationSection)
    sft: SupervisedSection = field(default_factory=SupervisedSection)
    log: LogSection = field(default_factory=LogSection)
    ray: RaySection = field(default_factory=RaySection)

    def __post_init__(self) -> None:
        check(self)


def load(plain: Mapping[str, Any]) -> Config:
    """A `Config` from plain dictionaries (Hydra's composition, resolved).

    Raises ConfigError for unknown keys, wrong types or arithmetic that does not work out: one line that names them all.
    """
    import pydantic

    try:
        return pydantic.TypeAdapter(Config).validate_python(plain)
    except pydantic.ValidationError as error:
        raise ConfigError("; ".join(_explain(e) for e in error.errors())) from error


def _explain(error: Any) -> str:
    key = ".".join(str(part) for part in error["loc"])
    if error["type"] == "unexpected_keyword_argument":
        return f"unknown configuration key {key}; see k3rl/config.py for the keys there are"
    if error["type"] == "value_error":
        return str(error["ctx"]["error"])
    return f"{key}={error['input']!r}: {error['msg'][:1].lower()}{error['msg'][1:]}"
