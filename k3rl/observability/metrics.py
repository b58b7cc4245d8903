"""Metrics of a run as JSON lines: one object per step, `{"step": 12, "loss": 0.31, "time/seconds": 4.2, ...}`.

Whatever depends on the clock (seconds, tokens per second) is named `time/...`: all other values of two runs with the
same configuration are equal, resumed or not, and `comparable` leaves just them. A value that is not finite is null.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from k3rl.errors import InfrastructureError, UserError
from k3rl.types import Json

CLOCK = "time/"
"""The prefix of what depends on the clock."""

Record = dict[str, Any]
"""One step: `step` and its metrics by name."""


class MetricsLog:
    """The writer of one metrics file; one at a time. Cuts off a last line that a killed run left half written."""

    def __init__(self, path: Path) -> None:
        self.path = path
        path.parent.mkdir(parents=True, exist_ok=True)
        whole, torn = _split(path)
        if torn:
            os.truncate(path, len(whole))
        records = _parse(path, whole)
        self._last = int(records[-1]["step"]) if records else None

    def append(self, step: int, metrics: Mapping[str, Json]) -> Record:
        """Add one step's line and flush it; the record as written. Steps must grow.

        Raises InfrastructureError where the line cannot be written (a full disk); the lines before it stay whole.
        """
        if self._last is not None and step <= self._last:
            raise ValueError(f"{self.path}: step {step} after step {self._last}; truncate the log to resume earlier")
        record = {"step": step, **{name: _finite(value) for name, value in metrics.items()}}
        line = (json.dumps(record, allow_nan=False) + "\n").encode()
        size = self.path.stat().st_size if self.path.exists() else 0
        try:
            with self.path.open("ab") as file:
                file.write(line)
        except OSError as error:
            if self.path.exists():
                os.truncate(self.path, size)
            raise InfrastructureError(f"{self.path}: step {step} cannot be written ({error}); make room") from error
        self._last = step
        return record

    def read(self) -> list[Record]:
        """Every step so far."""
        return read_metrics(self.path)

    def truncate(self, step: int) -> None:
        """Drop the steps after `step`, as a run does that goes on from the checkpoint of that step. Atomic."""
        kept = [record for record in self.read() if record["step"] <= step]
        part = self.path.with_name(self.path.name + ".part")
        with part.open("w", encoding="utf-8") as file:
            file.writelines(json.dumps(record) + "\n" for record in kept)
            file.flush()
            os.fsync(file.fileno())
        part.replace(self.path)
        self._last = int(kept[-1]["step"]) if kept else None


def read_metrics(path: Path) -> list[Record]:
    """The steps in a metrics file, without a last line that is not whole (a run may be writing it).

    Empty where there is no file. Raises UserError naming a line that is not a step.
    """
    return _parse(path, _split(path)[0])


def comparable(records: Iterable[Mapping[str, Any]]) -> list[Record]:
    """The records without what depends on the clock."""
    return [{name: value for name, value in r.items() if not name.startswith(CLOCK)} for r in records]


def _split(path: Path) -> tuple[bytes, bytes]:
    """The file's whole lines and what follows the last of them."""
    data = path.read_bytes() if path.exists() else b""
    end = data.rfind(b"\n") + 1
    return data[:end], data[end:]


def _parse(path: Path, lines: bytes) -> list[Record]:
    records = []
    for number, line in enumerate(lines.splitlines(), start=1):
        try:
            record = json.loads(line)
            if not isinstance(record, dict) or not isinstance(record.get("step"), int):
                raise ValueError("no whole number under `step`")
        except ValueError as error:
            raise UserError(f"{path}, line {number}: not a step of metrics ({error}); remove the line") from error
        records.append(record)
    return records


def _finite(value: Any) -> Any:
    """JSON knows no NaN or infinity; a numpy scalar becomes the Python number it holds."""
    plain = value.item() if hasattr(value, "item") else value
    return None if isinstance(plain, float) and not math.isfinite(plain) else plain
