"""Time limits of awaited calls that stand still while the call waits for its turn at something shared."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from types import TracebackType

_current: ContextVar[TimeLimit | None] = ContextVar("time_limit", default=None)


class TimeLimit:
    """`async with TimeLimit(5.0) as limit:` cancels what is inside, as TimeoutError, once it has worked for 5 seconds.

    Time inside `queueing` does not count, so that who comes late in a long queue is not taken for one that hangs.
    `worked`: the seconds that did count, also afterwards. `expired`: whether a TimeoutError is this limit's.
    """

    def __init__(self, seconds: float) -> None:
        self._left, self._since = seconds, 0.0
        self._seconds, self._queues = seconds, 0
        self._over = False
        self._timeout = asyncio.timeout(None)

    @property
    def worked(self) -> float:
        return self._seconds - self._left

    @property
    def expired(self) -> bool:
        return self._timeout.expired()

    async def __aenter__(self) -> TimeLimit:
        await self._timeout.__aenter__()
        self._token = _current.set(self)
        self._go_on()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop()
        self._over = True
        _current.reset(self._token)
        await self._timeout.__aexit__(kind, error, trace)

    @property
    def _ended(self) -> bool:
        """No clock to stop: what queues now cleans up, or is a task that outlives the call."""
        return self._over or self.expired

    def _stop(self) -> None:
        self._left -= time.monotonic() - self._since

    def _go_on(self) -> None:
        self._since = time.monotonic()
        self._timeout.reschedule(asyncio.get_running_loop().time() + self._left)

    @contextmanager
    def _queueing(self) -> Iterator[None]:
        self._queues += 1
        if self._queues == 1 and not self._ended:
            self._stop()
            self._timeout.reschedule(None)
        try:
            yield
        finally:
            self._queues -= 1
            if self._queues == 0 and not self._ended:
                self._go_on()


@contextmanager
def queueing() -> Iterator[None]:
    """Stop the clock of the limit that this call runs under, if it runs under one."""
    limit = _current.get()
    if limit is None:
        yield
        return
    with limit._queueing():
        yield
