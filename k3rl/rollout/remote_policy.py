"""The model as an episode sees it: a policy worker in another process, reached through Ray. No torch here."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from ray.exceptions import RayActorError, RayTaskError

from k3rl.environment import StepResult
from k3rl.errors import InfrastructureError, K3rlError, PolicyLostError
from k3rl.types import Task, TokenLog


@dataclass(frozen=True, kw_only=True, slots=True)
class RemoteTurn:
    """See `episode.SampledTurn`."""

    tokens: Sequence[int]
    stop: str


@dataclass(frozen=True, kw_only=True, slots=True)
class RemotePolicy:
    """`worker`: the actor handle of a `PolicyWorker`; `owner`: the episode worker that plays, so that its sessions can
    be dropped if it dies; `temperature` of sampling, 0 for greedy."""

    worker: Any
    owner: str
    temperature: float

    async def open(self, task: Task, prompt: Sequence[int], *, seed: int) -> RemoteSession:
        session = await _call(
            self.worker.open.remote(
                list(prompt),
                name=task.id,
                owner=self.owner,
                seed=seed,
                temperature=self.temperature,
                context=task.limits.context,
            )
        )
        return RemoteSession(self.worker, session)


class RemoteSession:
    """One open session of the engine."""

    def __init__(self, worker: Any, session: int) -> None:
        self._worker, self._session, self._open = worker, session, True

    async def turn(
        self, given: Sequence[int], *, after: StepResult | None, max_tokens: int, thinking_budget: int | None
    ) -> RemoteTurn:
        tokens, stop = await _call(
            self._worker.turn.remote(self._session, list(given), max_tokens=max_tokens, thinking_budget=thinking_budget)
        )
        return RemoteTurn(tokens=tokens, stop=stop)

    async def close(self) -> TokenLog:
        log: TokenLog = await _call(self._worker.close.remote(self._session))
        self._open = False
        return log

    async def abort(self) -> None:
        if self._open:
            self._open = False
            self._worker.abort.remote(self._session)


async def _call(reference: Any) -> Any:
    try:
        return await reference
    except RayActorError as error:
        raise PolicyLostError(f"the policy worker is gone: {error}") from error
    except RayTaskError as error:
        if isinstance(error.cause, K3rlError):
            raise error.cause from error
        # Whatever else failed there is no fault of the domain, which a plain exception would be taken for.
        raise InfrastructureError(f"the policy worker failed: {type(error.cause).__name__}: {error.cause}") from error
