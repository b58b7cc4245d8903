"""Models on disk: safetensors with the public names, with or without an index, experts plain or MXFP4-packed."""

from __future__ import annotations

import json
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from k3rl.errors import CheckpointError, ConfigError, InfrastructureError
from k3rl.model.config import ModelConfig
from k3rl.model.model import Model
from k3rl.model.tensors import public_tensors, write_tensors

WEIGHTS = "model.safetensors"
INDEX = "model.safetensors.index.json"


def load_model(folder: str | Path, dtype: torch.dtype = torch.float32) -> Model:
    """The model of a folder with `config.json` and safetensors (one file, or shards with an index).

    Packed experts are dequantized exactly and keep their bytes. CheckpointError names the file or tensor at fault.
    """
    folder = Path(folder)
    if dtype not in (torch.float32, torch.float64):
        raise ConfigError(f"load_model: dtype {dtype} is not supported (float32 or float64)")
    config = load_config(folder)
    model = Model.empty(config, dtype)
    write_tensors(model, read_tensors(folder), source=str(folder))
    return model


def load_config(folder: str | Path) -> ModelConfig:
    """The ModelConfig of a folder's `config.json`. Raises CheckpointError for an unreadable or foreign one."""
    path = Path(folder) / "config.json"
    try:
        public = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise CheckpointError(f"{path}: cannot be read ({error.strerror}); give a folder with a model") from error
    except ValueError as error:
        raise CheckpointError(f"{path}: not JSON ({error})") from error
    try:
        return ModelConfig.from_public(public)
    except (ConfigError, TypeError, AttributeError) as error:  # the last two: a value of another type
        raise CheckpointError(f"{path}: not a configuration that k3rl can run ({error}); give a K3 model") from error


def read_tensors(folder: Path) -> dict[str, Tensor]:
    """All tensors of a folder's safetensors files, by public name."""
    index = folder / INDEX
    try:
        names = sorted(set(json.loads(index.read_text())["weight_map"].values())) if index.exists() else [WEIGHTS]
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise CheckpointError(f"{index}: not an index with a weight_map ({error})") from error
    tensors: dict[str, Tensor] = {}
    for name in names:
        path = folder / name
        if not path.exists():
            raise CheckpointError(f"{path}: missing; copy the whole model folder")
        try:
            with safe_open(path, framework="pt") as file:
                tensors.update({key: file.get_tensor(key) for key in file.keys()})  # noqa: SIM118
        except (SafetensorError, OSError) as error:
            raise CheckpointError(f"{path}: truncated or corrupt ({error}); copy it again") from error
    return tensors


def save_model(model: Model, folder: str | Path, *, packed: bool) -> None:
    """Write `config.json` and `model.safetensors` with public names; the weights file appears whole or not at all.

    InfrastructureError if the disk does not take it.
    """
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    public = model.config.to_public()
    tensors = {name: value.detach().contiguous() for name, value in public_tensors(model, packed=packed).items()}
    partial = folder / f"{WEIGHTS}.partial"
    try:
        save_file(tensors, partial, metadata={"format": "pt"})
        partial.replace(folder / WEIGHTS)
        (folder / "config.json").write_text(json.dumps(public, indent=2) + "\n")
    except (SafetensorError, OSError) as error:
        partial.unlink(missing_ok=True)
        raise InfrastructureError(f"{folder}: the model cannot be written ({error}); free disk space") from error
