"""Progress of anything over two seconds: a bar on a terminal, a line now and then elsewhere."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import TracebackType

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    SpinnerColumn,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)

SHORT_SECONDS = 2.0  # what takes no longer needs no word
LINE_SECONDS = 20.0


class Bar:
    """`with Bar("evaluation", total=600) as bar: bar.advance(note="41% success")`.

    `total` None: not known yet. `done`: what was done before, by an earlier run; it does not count as speed.
    """

    def __init__(self, what: str, total: int | None, *, done: int = 0, console: Console | None = None) -> None:
        self._what, self._total, self.done = what, total, done
        self._console = console or Console(stderr=True)
        self._started = self._told = time.monotonic()
        self._progress = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            TimeRemainingColumn(),
            TextColumn("{task.fields[note]}"),
            console=self._console,
            disable=not self._console.is_terminal,
        )
        self._task = self._progress.add_task(what, total=total, completed=done, note="")

    def __enter__(self) -> Bar:
        self._progress.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._progress.stop()

    def advance(self, count: int = 1, note: str = "", total: int | None = None) -> None:
        """`count` more are done; `note` stands beside the bar; `total` where the estimate of it has changed."""
        self.done += count
        self._total = self._total if total is None else total
        self._progress.update(self._task, advance=count, note=note, total=self._total)
        now = time.monotonic()
        whole = self.done == self._total and now - self._started >= SHORT_SECONDS
        if self._console.is_terminal or not (whole or now - self._told >= LINE_SECONDS):
            return
        self._told = now
        of = "?" if self._total is None else self._total
        tail = f"  {note}" if note else ""
        self._console.print(f"{self._what}: {self.done}/{of} after {now - self._started:.0f} s{tail}", highlight=False)


@contextmanager
def waiting(what: str, *, after: float | None = None, console: Console | None = None) -> Iterator[None]:
    """Say that `what` is going on, for something that cannot be counted, once it has taken `after` seconds: by default
    two on a terminal (there with a clock, wiped at the end), twenty elsewhere."""
    console = console or Console(stderr=True)
    terminal = console.is_terminal
    columns = (SpinnerColumn(), TextColumn("{task.description}"), TimeElapsedColumn())
    clock = Progress(*columns, console=console, transient=True, disable=not terminal)
    clock.add_task(what, total=None)
    say = clock.start if terminal else lambda: console.print(f"{what} ...", highlight=False)
    timer = threading.Timer((SHORT_SECONDS if terminal else LINE_SECONDS) if after is None else after, say)
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
        timer.join()  # it may be starting the clock just now
        clock.stop()
