"""Runs of the suite and of hidden calls: each in a fresh sandbox, and one for all who ask for the same.

The samples of a group begin with the same files and often end with the same repair, and the outcome of a run depends
on nothing but the files. What had to be stopped is run again whenever it is asked for.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
from collections import OrderedDict
from dataclasses import dataclass, field

from k3rl.environments.sandbox import SandboxPool
from k3rl.types import Json

KEPT = 512  # runs that are remembered, the last ones asked for


@dataclass(kw_only=True, slots=True)
class _Run:
    turn: asyncio.Lock = field(default_factory=asyncio.Lock)
    lines: list[Json] | None = None


class Runs:
    """`pool` lends the sandboxes; `seconds` is the wall time of one run."""

    def __init__(self, pool: SandboxPool, *, seconds: float) -> None:
        self._pool, self._seconds = pool, seconds
        self._known: OrderedDict[str, _Run] = OrderedDict()

    async def lines(self, job: str, argument: Json) -> list[Json]:
        """The lines of a job (see suite_jobs/runner.py). Raises JobFailure where its code had to be stopped."""
        key = hashlib.sha256(json.dumps([job, argument]).encode()).hexdigest()
        run = self._known.setdefault(key, _Run())
        self._known.move_to_end(key)
        if len(self._known) > KEPT:
            self._known.popitem(last=False)
        async with run.turn:
            if run.lines is None:
                async with await self._pool.acquire() as box:
                    run.lines = await box.lines(job, argument, seconds=self._seconds)
            return run.lines

    def forget(self) -> None:
        """Run everything anew from now on."""
        self._known.clear()
