"""Weights & Biases beside the metrics file: a convenience that may fail without hurting the run.

Its files lie in the run folder (`wandb/`). A resumed run goes on under the same id, and points carry their own `step`,
so that steps logged twice overwrite each other.
"""

from __future__ import annotations

import logging
import os
import secrets
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Literal

log = logging.getLogger(__name__)

Mode = Literal["auto", "offline", "online", "disabled"]

START_SECONDS = 30.0
FINISH_SECONDS = 60.0


class Tracker:
    """Logs to Weights & Biases until it fails once; the failure is told, and nothing is sent from then on.

    `auto` is online where WANDB_API_KEY is set, offline otherwise; `disabled` never imports wandb.
    """

    def __init__(self, folder: Path, mode: Mode, *, project: str, name: str, config: Mapping[str, Any]) -> None:
        self._run: Any = None
        online = mode == "online" or (mode == "auto" and bool(os.environ.get("WANDB_API_KEY")))
        if mode != "disabled":
            self._guard("start", lambda: self._start(folder, online, project, name, config))

    @property
    def active(self) -> bool:
        """Whether points are still being sent."""
        return self._run is not None

    def log(self, record: Mapping[str, Any]) -> None:
        """Send one record of the metrics file, its plain values; it holds `step`."""
        if self._run is not None:
            plain = {name: value for name, value in record.items() if isinstance(value, int | float | str)}
            self._guard("log", lambda: self._run.log(plain))

    def finish(self) -> None:
        """Flush and close; at most a minute where the network is gone."""
        run, self._run = self._run, None
        if run is not None:
            self._guard("finish", run.finish)

    def _start(self, folder: Path, online: bool, project: str, name: str, config: Mapping[str, Any]) -> None:
        import wandb

        folder.mkdir(parents=True, exist_ok=True)
        settings = wandb.Settings(
            silent=True,
            console="off",  # the run's own output is none of its business
            disable_git=True,
            save_code=False,
            x_disable_stats=True,
            x_save_requirements=False,
            init_timeout=START_SECONDS,
            finish_timeout=FINISH_SECONDS,
        )
        self._run = wandb.init(
            dir=folder,
            mode="online" if online else "offline",
            project=project,
            name=name,
            id=_run_id(folder),
            resume="allow" if online else None,
            config=dict(config),
            settings=settings,
        )
        self._run.define_metric("step", hidden=True)
        self._run.define_metric("*", step_metric="step")

    def _guard(self, what: str, action: Callable[[], Any]) -> None:
        # Any exception: wandb raises its own, the network's, the disk's and those of the libraries below it, and none
        # of them is worth a training run.
        try:
            action()
        except Exception as error:
            self._run = None
            first = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
            log.warning(
                "Weights & Biases failed to %s (%s): the run goes on without it, metrics.jsonl has everything; "
                "log.wandb=disabled turns it off",
                what,
                first,
            )


def _run_id(folder: Path) -> str:
    """The id kept in the folder, made at the first start."""
    file = folder / "wandb_id"
    if not file.exists():
        file.write_text(secrets.token_hex(4), encoding="utf-8")
    return file.read_text(encoding="utf-8").strip()
