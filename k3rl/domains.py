"""Domains by configuration: conf/environment/<name>.yaml names a class by `_target_`; nothing here knows any domain."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Mapping
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

from k3rl.environment import Domain
from k3rl.errors import ConfigError


def make_domains(environment: Mapping[str, Mapping[str, Any]]) -> dict[str, Domain]:
    """One `Domain` for each entry of `config.environment`, which must have one."""
    if not environment:
        raise ConfigError("environment is empty: choose domains, e.g. environment=[terminal,office]")
    return {name: make_domain(name, settings) for name, settings in environment.items()}


def make_domain(name: str, settings: Mapping[str, Any]) -> Domain:
    """Build the class that `settings["_target_"]` names (`package.module.Class`) with the other settings.

    Raises ConfigError if it cannot be imported, does not take the settings, or is no `Domain`.
    """
    arguments = {key: value for key, value in settings.items() if key != "_target_"}
    target = str(settings.get("_target_", ""))
    module_name, _, class_name = target.rpartition(".")
    if not module_name:
        raise ConfigError(f"environment.{name}._target_={target!r}: name a class, as in package.module.Class")
    try:
        made = getattr(importlib.import_module(module_name), class_name)(**arguments)
    except (ImportError, AttributeError) as error:
        raise ConfigError(f"environment.{name}._target_={target}: {error}") from error
    except (TypeError, ConfigError) as error:
        raise ConfigError(f"environment.{name}: {error}; see {target}") from error
    if not isinstance(made, Domain):
        raise ConfigError(f"environment.{name}._target_={target}: not a k3rl.environment.Domain")
    return made


def known_domains() -> dict[str, Mapping[str, Any]]:
    """Every domain of conf/environment/ and of installed packages' entry points (group `k3rl.environments`)."""
    from omegaconf import OmegaConf

    folder = Path(sys.modules["k3rl"].__path__[0]) / "conf" / "environment"
    found: dict[str, Mapping[str, Any]] = {}
    for file in sorted(folder.glob("*.yaml")):
        plain = OmegaConf.to_container(OmegaConf.load(file))
        if isinstance(plain, dict):
            found[file.stem] = {str(key): value for key, value in plain.items()}
    for entry in entry_points(group="k3rl.environments"):
        found[entry.name] = {"_target_": entry.value.replace(":", ".")}
    return found
