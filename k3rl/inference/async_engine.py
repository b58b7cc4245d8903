"""The engine in a thread of its own, with an asyncio face: many sessions at once, weights replaced between steps."""

from __future__ import annotations

import asyncio
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any, TypeVar

import torch

from k3rl.errors import DeadlineError, InfrastructureError
from k3rl.inference.engine import Engine, Weights
from k3rl.inference.rules import SampledTurn, Sampling
from k3rl.inference.session import Session
from k3rl.types import TokenLog

Result = TypeVar("Result")


@dataclass(frozen=True, kw_only=True, slots=True)
class _Command:
    """Something to do between two steps, and where its result goes."""

    run: Callable[[], Any]
    future: Future[Any]


class AsyncEngine:
    """Owns the thread in which `engine` steps; use it as `with AsyncEngine(engine) as engine:` or call `shutdown`.

    An error in the thread reaches every waiter and every later call. `wait_seconds` bounds every wait (time in which
    the engine is paused does not count); what runs past it raises DeadlineError and frees its session.
    """

    def __init__(self, engine: Engine, *, wait_seconds: float = 600.0) -> None:
        self._engine = engine
        self._wait_seconds = wait_seconds
        self._wake = threading.Condition()
        self._commands: deque[_Command] = deque()
        self._turns: dict[Session, Future[SampledTurn]] = {}
        self._stopping = False
        self._failure: BaseException | None = None
        self._paused_since: float | None = None
        self._paused_seconds = 0.0
        self._compute_threads = torch.get_num_threads()
        self._thread = threading.Thread(target=self._main, name="k3rl-engine", daemon=True)
        self._thread.start()

    @property
    def failure(self) -> str:
        """What ended the engine's thread, or nothing: it will never sample again."""
        return "" if self._failure is None else str(self._gone())

    def __enter__(self) -> AsyncEngine:
        return self

    def __exit__(self, *_: object) -> None:
        self.shutdown()

    async def open(
        self, prompt: Sequence[int], *, seed: int, sampling: Sampling, group_key: str, context: int | None = None
    ) -> AsyncSession:
        """See Engine.open."""

        def run() -> Session:
            return self._engine.open(prompt, seed=seed, sampling=sampling, group_key=group_key, context=context)

        return AsyncSession(self, await self._call(run, f"opening a session of {group_key}"))

    async def publish(self, weights: Weights) -> None:
        """Replace the weights between two steps. A failure is raised here and in every turn that was running."""

        def run() -> None:
            try:
                self._engine.publish(weights)
            except Exception as error:
                for session in self._turns:
                    self._engine.abort(session)
                self._fail_turns(error)
                raise

        await self._call(run, f"publishing weights version {weights.version}")

    def pause(self) -> None:
        """Stop stepping (turns stay where they are) until `resume`; publishing, opening and closing go on."""
        with self._wake:
            if self._paused_since is None:
                self._paused_since = time.monotonic()

    def resume(self) -> None:
        """Go on after `pause`."""
        with self._wake:
            if self._paused_since is not None:
                self._paused_seconds += time.monotonic() - self._paused_since
                self._paused_since = None
                self._wake.notify()

    def shutdown(self) -> None:
        """Stop the thread; turns that are still waited for raise."""
        with self._wake:
            self._stopping = True
            self._wake.notify()
        self._thread.join(self._wait_seconds)
        if self._thread.is_alive():
            raise DeadlineError(f"the engine's thread did not stop within {self._wait_seconds:g} s")

    # Calls from other threads

    async def _call(self, run: Callable[[], Result], what: str) -> Result:
        return await self._wait(self._submit(run), what)

    def _submit(self, run: Callable[[], Result]) -> Future[Result]:
        """Have `run` called in the engine's thread, between two steps."""
        future: Future[Result] = Future()
        with self._wake:
            if self._failure is not None or self._stopping:
                raise self._gone()
            self._commands.append(_Command(run=run, future=future))
            self._wake.notify()
        return future

    async def _wait(self, future: Future[Result], what: str) -> Result:
        deadline = self._unpaused_time() + self._wait_seconds
        wrapped = asyncio.wrap_future(future)
        try:
            while not wrapped.done():
                left = deadline - self._unpaused_time()
                if left <= 0:
                    raise DeadlineError(f"{what}: the engine did not answer within {self._wait_seconds:g} s")
                await asyncio.wait([wrapped], timeout=max(left, 0.05))
            return wrapped.result()
        finally:
            wrapped.cancel()  # nobody waits any more; without effect on a result

    def _unpaused_time(self) -> float:
        with self._wake:
            now = time.monotonic() if self._paused_since is None else self._paused_since
            return now - self._paused_seconds

    def _gone(self) -> InfrastructureError:
        if self._failure is None:
            return InfrastructureError("the engine was shut down")
        error = InfrastructureError(f"the engine stopped: {type(self._failure).__name__}: {self._failure}")
        error.__cause__ = self._failure
        return error

    # In the engine's thread

    def _main(self) -> None:
        try:
            torch.set_num_threads(self._compute_threads)  # OpenMP and MKL keep this number by thread
            while self._run_commands():
                if self._may_step():
                    for session, turn in self._engine.step():
                        self._deliver(session, turn)
        except BaseException as error:  # whatever it was, the waiters must hear of it
            self._failure = error
        with self._wake:
            self._stopping = True
            commands, self._commands = self._commands, deque()
        for command in commands:
            _set_exception(command.future, self._gone())
        self._fail_turns(self._gone())

    def _may_step(self) -> bool:
        return self._paused_since is None and self._engine.has_work

    def _run_commands(self) -> bool:
        """Wait until there is something to do, run what was asked for; False when it is time to stop."""
        with self._wake:
            while not (self._stopping or self._commands or self._may_step()):
                self._wake.wait()
            commands, self._commands = self._commands, deque()
            if self._stopping:
                self._commands = commands
                return False
        for command in commands:
            if not command.future.set_running_or_notify_cancel():
                continue
            try:
                command.future.set_result(command.run())
            except Exception as error:  # the caller's mistake or its publication: told to the caller
                command.future.set_exception(error)
        return True

    def start_turn(
        self, session: Session, given: Sequence[int], max_tokens: int, thinking_budget: int | None
    ) -> Future[SampledTurn]:
        """Begin a turn; the future is set by the step that finishes it."""
        future: Future[SampledTurn] = Future()

        def run() -> None:
            try:
                self._engine.start_turn(session, given, max_tokens=max_tokens, thinking_budget=thinking_budget)
            except Exception as error:
                _set_exception(future, error)
            else:
                self._turns[session] = future

        self._submit(run)
        return future

    def _deliver(self, session: Session, turn: SampledTurn) -> None:
        future = self._turns.pop(session)
        if future.set_running_or_notify_cancel():
            future.set_result(turn)

    def _fail_turns(self, error: BaseException) -> None:
        turns, self._turns = self._turns, {}
        for future in turns.values():
            _set_exception(future, error)

    def abort_session(self, session: Session) -> None:
        """Free a session at the next chance; returns at once, and does nothing when the engine is gone."""

        def run() -> None:
            future = self._turns.pop(session, None)
            if future is not None:
                _set_exception(future, InfrastructureError(f"{session} was aborted"))
            self._engine.abort(session)

        with self._wake:
            if not self._stopping and self._failure is None:
                self._commands.append(_Command(run=run, future=Future()))
                self._wake.notify()


class AsyncSession:
    """One episode's token list in the engine. End it by `close` (hands over the log) or `abort`."""

    def __init__(self, engine: AsyncEngine, session: Session) -> None:
        self._engine = engine
        self._session = session

    async def turn(self, given: Sequence[int], *, max_tokens: int, thinking_budget: int | None = None) -> SampledTurn:
        """Append `given` (mask 0), then sample until the stop token or a limit. Cancelling it, or any error, aborts the
        session."""
        try:
            future = self._engine.start_turn(self._session, given, max_tokens, thinking_budget)
            return await self._engine._wait(future, f"{self._session}: a turn")
        except BaseException:
            self.abort()
            raise

    async def close(self) -> TokenLog:
        """The finished token list with log-probabilities, versions and routes."""
        return await self._engine._call(lambda: self._engine._engine.close(self._session), f"{self._session}: close")

    def abort(self) -> None:
        """Give the session up at any point; returns at once."""
        self._engine.abort_session(self._session)


def _set_exception(future: Future[Any], error: BaseException) -> None:
    """Tell the waiter, unless it has gone."""
    if future.set_running_or_notify_cancel():
        future.set_exception(error)
