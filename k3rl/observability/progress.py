"""Progress of anything over two seconds: a bar on a terminal, a line now and then elsewhere."""

from __future__ import annotations

import time
from types import TracebackType

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

LINE_SECONDS = 20.0


class Bar:
    """`with Bar("evaluation", total=600) as bar: bar.advance(note="41% success")`."""

    def __init__(self, what: str, total: int, *, console: Console | None = None) -> None:
        self._what, self._total, self._done = what, total, 0
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
        self._task = self._progress.add_task(what, total=total, note="")

    def __enter__(self) -> Bar:
        self._progress.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._progress.stop()

    def advance(self, count: int = 1, note: str = "") -> None:
        """`count` more are done; `note` stands beside the bar."""
        self._done += count
        self._progress.update(self._task, advance=count, note=note)
        now = time.monotonic()
        if self._console.is_terminal or (now - self._told < LINE_SECONDS and self._done < self._total):
            return
        self._told = now
        tail = f"  {note}" if note else ""
        self._console.print(
            f"{self._what}: {self._done}/{self._total} after {now - self._started:.0f} s{tail}", highlight=False
        )
