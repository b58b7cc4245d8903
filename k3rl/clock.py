"""What the phases of a run took, kept in its folder: time that a killed run lost was spent as well."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager

from k3rl.run_folder import RunFolder

FILE = "seconds.json"


class Clock:
    """`seconds` by phase, over all starts of the run; the phase in which a run is killed is not counted."""

    def __init__(self, folder: RunFolder) -> None:
        self._folder = folder
        self.seconds: defaultdict[str, float] = defaultdict(float, folder.read_json(FILE) or {})

    @contextmanager
    def timed(self, phase: str) -> Iterator[None]:
        """Add the time spent inside, and write it down: whatever comes next may be the end."""
        started = time.monotonic()
        try:
            yield
        finally:
            self.add(phase, time.monotonic() - started)

    def add(self, phase: str, seconds: float) -> None:
        """Count seconds that were measured otherwise."""
        self.seconds[phase] += seconds
        self._folder.store_json(FILE, dict(self.seconds))
