"""The driver's handle on all rollout actors: starts them, hands out groups, replaces the ones that died.

Nothing is lost when an actor dies: its groups are deterministic given (version, seed) and are run again.
"""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import ray
from ray.exceptions import RayActorError, RayTaskError

from k3rl.config import RolloutSection
from k3rl.errors import DeadlineError, InfrastructureError, PolicyLostError
from k3rl.rollout.episode import EpisodeLimits
from k3rl.rollout.episode_worker import EpisodeWorker
from k3rl.rollout.group import EpisodeSummary, GroupSpec
from k3rl.types import Tier

log = logging.getLogger(__name__)

START_SECONDS = 120.0
LOST_LIMIT = 5  # actor deaths in one call before the job gives up


@dataclass(frozen=True, kw_only=True, slots=True)
class GroupResult:
    """A finished group: summaries here, the trajectories (list of Scored) in the object store."""

    spec: GroupSpec
    episodes: tuple[EpisodeSummary, ...]
    trajectories: Any


class RolloutPool:
    """Episode workers, and policy workers when `model_config` is given."""

    def __init__(
        self,
        rollout: RolloutSection,
        environment: Mapping[str, Any],
        *,
        tokenizer: str,
        model_config: Any = None,
        variants: int = 1,
    ) -> None:
        self._rollout, self._environment, self._tokenizer = rollout, environment, tokenizer
        self._model_config, self._variants = model_config, variants
        self._publication: Any = None
        self.episode_workers = [self._episode_worker() for _ in range(rollout.episode_workers)]
        self.policy_workers: list[Any] = []
        if model_config is not None:
            self.policy_workers = [self._policy_worker() for _ in range(rollout.policy_workers)]

    def _episode_worker(self) -> Any:
        limits = EpisodeLimits(
            context=self._rollout.max_context,
            thinking={Tier(name): tokens for name, tokens in self._rollout.thinking.items()},
            retries=self._rollout.retries,
            turn_deadline=self._rollout.deadline_seconds,
        )
        actor = ray.remote(EpisodeWorker).options(num_cpus=0, max_concurrency=1000)
        return actor.remote(self._environment, self._tokenizer, limits, self._variants)

    def _policy_worker(self) -> Any:
        from k3rl.rollout.policy_worker import PolicyWorker  # its import loads torch; runs without a model need none

        threads = str(self._rollout.policy_threads)
        actor = ray.remote(PolicyWorker).options(
            num_cpus=0,
            max_concurrency=1000,
            runtime_env={"env_vars": {"OMP_NUM_THREADS": threads, "MKL_NUM_THREADS": threads}},
        )
        return actor.remote(self._model_config, self._tokenizer, self._rollout)

    def publish(self, publication: Any) -> None:
        """Send a version (a reference to a Publication) to every policy worker and wait until each has verified it."""
        self._publication = publication
        self.wait([w.publish.remote(publication) for w in self.policy_workers], "apply the weights")

    def run(
        self, specs: Sequence[GroupSpec], on_group: Callable[[GroupResult], None] | None = None
    ) -> list[GroupResult]:
        """Play every group, at most `concurrent_episodes` at once per worker; results in the order of `specs`."""
        return _Run(self, specs, on_group).finish()

    def submit(self, spec: GroupSpec, place: int) -> tuple[Any, Any]:
        """Start one group on the worker of its place; references to its summaries and its trajectories."""
        worker = self.episode_workers[place % len(self.episode_workers)]
        policy = self.policy_workers[place % len(self.policy_workers)] if self.policy_workers else None
        summaries, trajectories = worker.run_group.options(num_returns=2).remote(spec, policy)
        return summaries, trajectories

    def replace_dead(self) -> int:
        """Restart the actors that do not answer; new policy workers get the last publication. How many died."""
        dead = 0
        for workers, make in ((self.episode_workers, self._episode_worker), (self.policy_workers, self._policy_worker)):
            for place, worker in enumerate(workers):
                if not _alive(worker):
                    workers[place] = make()
                    dead += 1
        if dead and self._publication is not None:
            self.publish(self._publication)
        return dead

    def record(self, results: Sequence[GroupResult], advantages: Sequence[Sequence[float]], **where: Any) -> Any:
        """Write the trajectories of one step to Parquet; a reference to wait for."""
        references = [result.trajectories for result in results]
        return self.episode_workers[0].record.remote(groups=references, advantages=advantages, **where)

    def wait(self, reference: Any, what: str) -> Any:
        """The value of a reference, with the time limit of the pool and errors of ours as themselves."""
        try:
            return ray.get(reference, timeout=START_SECONDS)
        except ray.exceptions.GetTimeoutError as error:
            raise DeadlineError(f"waited {START_SECONDS:g} s for a rollout worker to {what}") from error
        except RayTaskError as error:
            raise error.cause if isinstance(error.cause, Exception) else error from error

    def levels(self) -> dict[str, int]:
        """The number of levels by domain."""
        return dict(self.wait(self.episode_workers[0].levels.remote(), "start"))

    def close(self) -> None:
        """Release sandboxes and end the actors."""
        for worker in self.episode_workers:
            try:
                ray.get(worker.close.remote(), timeout=30)
            except (RayActorError, ray.exceptions.GetTimeoutError) as error:
                log.warning("an episode worker did not close (%s); its sandboxes end with it", type(error).__name__)
        for worker in (*self.episode_workers, *self.policy_workers):
            ray.kill(worker)


class _Run:
    """One call of `RolloutPool.run`: a bounded number of groups in flight until all are done."""

    def __init__(
        self, pool: RolloutPool, specs: Sequence[GroupSpec], on_group: Callable[[GroupResult], None] | None
    ) -> None:
        self.pool, self.specs, self.on_group = pool, specs, on_group
        self.waiting = deque(range(len(specs)))
        self.flying: dict[Any, tuple[int, Any]] = {}
        self.done: dict[int, GroupResult] = {}
        self.lost = 0

    def finish(self) -> list[GroupResult]:
        rollout = self.pool._rollout
        room = rollout.concurrent_episodes * len(self.pool.episode_workers)
        deadline = rollout.deadline_seconds
        last = time.monotonic()
        episodes = 0
        while self.waiting or self.flying:
            while self.waiting and (not self.flying or episodes + self.specs[self.waiting[0]].samples <= room):
                place = self.waiting.popleft()
                summaries, trajectories = self.pool.submit(self.specs[place], place)
                self.flying[summaries] = (place, trajectories)
                episodes += self.specs[place].samples
            ready, _ = ray.wait(list(self.flying), num_returns=1, timeout=deadline)
            if not ready and time.monotonic() - last > deadline:
                names = ", ".join(sorted({self.specs[p].domain for p, _ in self.flying.values()}))
                raise DeadlineError(f"no group of {names} finished within {deadline:g} s (rollout.deadline_seconds)")
            last = time.monotonic()
            for reference in ready:
                place, trajectories = self.flying.pop(reference)
                episodes -= self.specs[place].samples
                self._collect(reference, place, trajectories)
        return [self.done[place] for place in range(len(self.specs))]

    def _collect(self, reference: Any, place: int, trajectories: Any) -> None:
        try:
            episodes = tuple(ray.get(reference))
        except (RayActorError, RayTaskError) as error:
            cause = error.cause if isinstance(error, RayTaskError) else error
            if not isinstance(cause, RayActorError | PolicyLostError):
                raise cause if isinstance(cause, Exception) else error from error
            self.lost += 1
            if self.lost > LOST_LIMIT * len(self.specs):
                raise InfrastructureError(f"rollout workers keep dying; the last one: {error}") from error
            self.pool.replace_dead()
            self.waiting.append(place)
            return
        result = GroupResult(spec=self.specs[place], episodes=episodes, trajectories=trajectories)
        self.done[place] = result
        if self.on_group is not None:
            self.on_group(result)


def _alive(worker: Any) -> bool:
    try:
        ray.get(worker.__ray_ready__.remote(), timeout=START_SECONDS)
    except (RayActorError, ray.exceptions.GetTimeoutError):
        return False
    return True
