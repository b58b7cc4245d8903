"""Where a model is: a folder in the hub's layout, or the name of one that the package ships."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from k3rl.errors import CheckpointError

ASSETS = Path(__file__).parent / "assets"


def model_folder(path: str) -> Path:
    """The folder of `path`: a path, or the name of a shipped model (`nano_base`). Raises CheckpointError."""
    for candidate in (Path(path), ASSETS / path):
        if (candidate / "config.json").is_file():
            return candidate.absolute()
    shipped = ", ".join(sorted(p.parent.name for p in ASSETS.glob("*/model*.safetensors")))
    raise CheckpointError(
        f"model.path={path}: no model folder (config.json) there; give a folder, or a shipped one: {shipped or 'none'}"
    )


def model_name(folder: Path) -> str:
    """What to call the model of a folder: the folder's name, or its run's for the `model/` of a run."""
    return folder.parent.name if folder.name == "model" else folder.name


def tokenizer_folder(name: str) -> Path:
    """A tokenizer's folder: a path, or `nano` for the shipped one."""
    return ASSETS / "nano_tokenizer" if name == "nano" else Path(name)


def model_config(folder: Path) -> Any:
    """The ModelConfig of a model folder. Raises CheckpointError for an unreadable or foreign one."""
    from k3rl.model import load_config  # loads torch, which finding a folder does not need

    return load_config(folder)
