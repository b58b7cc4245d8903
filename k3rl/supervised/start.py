"""A model from nothing: random weights of a preset in a model folder, tokenizer beside them."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

from k3rl.chat import load_tokenizer
from k3rl.config import Config
from k3rl.errors import ConfigError
from k3rl.model_folder import tokenizer_folder

TOKENIZER_FILES = ("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json")


def initial_model(config: Config, folder: Path) -> Path:
    """Write the model of `config.model.preset` with seed `config.seed` to `folder`, unless it is there already."""
    if (folder / "config.json").exists():
        return folder
    import torch

    from k3rl.model import Model, preset, save_model

    source = tokenizer_folder(config.model.tokenizer)
    tokenizer = load_tokenizer(source)
    try:
        shape = replace(preset(config.model.preset).with_vocabulary(tokenizer.vocab_size), **config.model.overrides)
    except TypeError as error:
        raise ConfigError(f"model.preset={config.model.preset} with {config.model.overrides}: {error}") from error
    torch.manual_seed(config.seed)
    fresh = folder.with_name(f".{folder.name}.new")
    shutil.rmtree(fresh, ignore_errors=True)
    save_model(Model(shape), fresh, packed=False)
    copy_tokenizer(source, fresh)
    fresh.rename(folder)
    return folder


def copy_tokenizer(source: Path, target: Path) -> None:
    """Copy the tokenizer's files from one model folder to another."""
    for name in TOKENIZER_FILES:
        if (source / name).exists():
            shutil.copyfile(source / name, target / name)
