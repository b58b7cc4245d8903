"""The run folder: resolved config, metrics, trajectories, evaluations, checkpoints. One process writes it at a time.

    runs/NAME/config.yaml                 resolved configuration
             metrics.jsonl                one line per optimizer step
             trajectories/step-000012.parquet
             evaluation/before.jsonl      results by task
             checkpoints/step-000010/     learner/ (weights, optimizer) and state.json (the driver's side)
             model/                       the trained model, hub layout
             seconds.json                 time spent so far, by phase (k3rl.clock)
             summary.json, success.png
             done.json                    what the run was asked for, once all of it is done

A checkpoint is written under a temporary name, flushed and renamed; the newest complete one wins, a damaged one is
told and passed over.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import logging
import os
import re
import shutil
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

from k3rl.config import Config
from k3rl.errors import CheckpointError, ConfigError, InfrastructureError, UserError
from k3rl.types import Json

log = logging.getLogger(__name__)

FREE_TO_CHANGE = (
    *("name", "run_dir", "log.", "ray."),
    *("train.seconds", "train.keep_checkpoints"),
    # How much runs at once, and where: what a run that ran out of memory or time is told to lower.
    *("rollout.slots", "rollout.concurrent_episodes", "rollout.policy_workers", "rollout.policy_threads"),
    *("rollout.episode_workers", "rollout.retries", "rollout.deadline_seconds"),
    *("rollout.fault_limit", "rollout.turn_seconds", "rollout.environment_seconds"),
    *("learner.ranks", "learner.threads", "learner.micro_batch_tokens"),
)
"""Keys that a resumed run may have otherwise than the run it continues, by their beginnings."""

STEPS_TO_COME = (
    *("learner.learning_rate", "learner.schedule", "learner.warmup_steps", "learner.clip_gradient"),
    *("learner.weight_decay", "rollout.max_context", "train.steps"),  # steps: a schedule reaches to the last one
)
"""Keys that may change as well, and are told: they decide about steps not yet done, and errors ask for other values."""

WORK = ("metrics.jsonl", "evaluation/*.jsonl", "demonstrations/step-*", "initial/*", "checkpoints/step-*/state.json")
"""Files that show that something was done with a configuration."""


class RunFolder:
    """Opens (or makes) a run folder and locks it for this process until `close`, or the end of a `with` block."""

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path).absolute()
        try:
            for part in ("checkpoints", "trajectories", "evaluation"):
                (self.path / part).mkdir(parents=True, exist_ok=True)
            self._lock = (self.path / ".lock").open("w")
        except OSError as error:
            raise UserError(f"run_dir={self.path}: {error.strerror}; choose a folder that can be written") from error
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            self._lock.close()
            raise UserError(f"run_dir={self.path}: another process is running it; wait, or choose another") from error
        for left in (self.path / "checkpoints").glob(".tmp-*"):
            shutil.rmtree(left, ignore_errors=True)  # a learner of the killed run may be writing its last bytes there

    def __enter__(self) -> RunFolder:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Let another process have the folder."""
        self._lock.close()

    @property
    def metrics(self) -> Path:
        return self.path / "metrics.jsonl"

    def trajectories(self, step: int) -> Path:
        """The Parquet file of one step."""
        return self.path / "trajectories" / f"step-{step:06d}.parquet"

    def store_config(self, config: Config, *, stage: int = 0, step: int = 0) -> None:
        """Write config.yaml; once anything was done with the stored one, check that this one asks for the same run.

        `stage` and `step`: where in sft.stages the run stands. Raises ConfigError naming the keys.
        """
        from omegaconf import OmegaConf

        plain = json.loads(json.dumps(asdict(config)))
        file = self.path / "config.yaml"
        if file.exists() and self._holds_work():
            differ = _differences(OmegaConf.to_container(OmegaConf.load(file)), plain)
            to_come = [key for key in differ if _is_to_come(key, stage, step)]
            if fixed := [key for key in differ if key not in to_come and not key.startswith(FREE_TO_CHANGE)]:
                raise ConfigError(
                    f"run_dir={self.path} was started with other settings ({', '.join(fixed)}): "
                    "use the same ones to resume it, or another run_dir"
                )
            if to_come:
                told = ", ".join(f"{key}={differ[key][1]} (was {differ[key][0]})" for key in to_come)
                log.warning("%s goes on with other settings from here: %s", self.path.name, told)
        write_atomically(file, OmegaConf.to_yaml(OmegaConf.create(plain)).encode())

    def _holds_work(self) -> bool:
        """Whether anything was done that other settings would not fit."""
        return any(file.stat().st_size for pattern in WORK for file in self.path.glob(pattern))

    def save_checkpoint(self, step: int, state: Json, save_learner: Callable[[Path], None], keep: int) -> None:
        """A consistent cut: `save_learner(folder)` writes the learner's part, `state` is the driver's. `keep`: how many
        stay, this one included.

        Raises InfrastructureError if it cannot be written (a full disk); the ones before it stay as they are.
        """
        folder = self.path / "checkpoints"
        temporary = folder / f".tmp-step-{step:06d}"
        shutil.rmtree(temporary, ignore_errors=True)
        try:
            temporary.mkdir()
            save_learner(temporary / "learner")
            text = json.dumps(state, sort_keys=True)
            digest = hashlib.sha256(text.encode()).hexdigest()
            write_atomically(temporary / "state.json", json.dumps({"sha256": digest, "state": text}).encode())
            final = folder / f"step-{step:06d}"
            if final.exists():  # a damaged one, passed over when the run went on from an earlier one
                shutil.rmtree(final)
            temporary.rename(final)
            _sync_folder(folder)
        except (OSError, InfrastructureError) as error:
            shutil.rmtree(temporary, ignore_errors=True)
            raise InfrastructureError(
                f"checkpoint of step {step} in {folder} could not be written: {error}; earlier ones are whole. "
                "Make room and run the same command again."
            ) from error
        whole = [old for old in sorted(folder.glob("step-*")) if old.name <= final.name]  # later ones are damaged
        for old in whole[:-keep]:
            shutil.rmtree(old)

    def newest_checkpoint(self, check_learner: Callable[[Path, Json], None]) -> tuple[Path, Json] | None:
        """The newest complete checkpoint: its learner folder and the driver's state; None before the first. Damaged
        ones are told.

        `check_learner(folder, state)` raises CheckpointError on a damaged learner part; so does this if none is whole:
        to start anew would throw away what the run has done.
        """
        damaged = None
        for folder in sorted((self.path / "checkpoints").glob("step-*"), reverse=True):
            try:
                state = _read_state(folder / "state.json")
                check_learner(folder / "learner", state)
            except CheckpointError as error:
                log.warning("passing over %s: %s", folder.name, error)
                damaged = damaged or error
                continue
            return folder / "learner", state
        if damaged is not None:
            raise CheckpointError(
                f"run_dir={self.path}: no checkpoint can be read (the newest: {damaged}): restore one, or use another "
                "run_dir to start anew"
            )
        return None

    def store_json(self, name: str, value: Json) -> None:
        """Write `name` (relative) atomically."""
        write_atomically(self.path / name, json.dumps(value, indent=1).encode())

    def read_json(self, name: str) -> Json | None:
        """What `store_json` wrote, or None."""
        file = self.path / name
        return json.loads(file.read_text()) if file.exists() else None


def write_atomically(file: Path, data: bytes) -> None:
    """Write under a temporary name, flush to disk, rename: the file is whole, or what it was before.

    Raises InfrastructureError if it cannot be written (a full disk).
    """
    temporary = file.with_name(f".{file.name}.tmp")
    try:
        with temporary.open("wb") as handle:
            handle.write(data)
            handle.flush()
            os.fsync(handle.fileno())
        temporary.rename(file)
    except OSError as error:
        temporary.unlink(missing_ok=True)
        raise InfrastructureError(f"{file} could not be written: {error.strerror}; make room and try again") from error


def _read_state(file: Path) -> Json:
    try:
        stored = json.loads(file.read_text())
        text = stored["state"]
        if hashlib.sha256(text.encode()).hexdigest() != stored["sha256"]:
            raise CheckpointError(f"{file}: its hash does not match")
        return json.loads(text)
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise CheckpointError(f"{file}: {error}") from error


def _sync_folder(folder: Path) -> None:
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _is_to_come(key: str, stage: int, step: int) -> bool:
    """Stages may change until they begin; the one under way in its learning rate only."""
    if found := re.match(r"sft\.stages\.(\d+)", key):
        place = int(found[1])
        return place > stage or (place == stage and (step == 0 or key.endswith(".learning_rate")))
    return key in STEPS_TO_COME


def _differences(old: Any, new: Any, prefix: str = "") -> dict[str, tuple[Any, Any]]:
    """By key: the old value and the new one."""
    old, new = _by_key(old), _by_key(new)
    if isinstance(old, dict) and isinstance(new, dict):
        found: dict[str, tuple[Any, Any]] = {}
        for key in sorted({*old, *new}, key=lambda key: (len(key), key) if key.isdigit() else (0, key)):
            found |= _differences(old.get(key), new.get(key), f"{prefix}{key}.")
        return found
    return {} if old == new else {prefix.rstrip("."): (old, new)}


def _by_key(value: Any) -> Any:
    """Mappings have text for keys, as in JSON; sections in a list (sft.stages) go by their places."""
    if isinstance(value, list) and all(isinstance(item, dict) for item in value):
        value = dict(enumerate(value))
    return {str(key): item for key, item in value.items()} if isinstance(value, dict) else value
