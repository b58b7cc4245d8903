"""The driver's handle on all rollout actors: starts them, hands out groups, replaces the ones that died.

Nothing is lost when an actor dies: its groups are deterministic given (version, seed) and are run again.
"""

from __future__ import annotations

import contextlib
import itertools
import logging
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import ray
from ray.exceptions import GetTimeoutError, RayActorError, RayTaskError

from k3rl.config import RolloutSection
from k3rl.errors import DeadlineError, InfrastructureError, PolicyLostError
from k3rl.observability.progress import waiting
from k3rl.rollout.episode import EpisodeLimits
from k3rl.rollout.episode_worker import EpisodeWorker
from k3rl.rollout.group import EpisodeSummary, GroupSpec
from k3rl.types import Tier

log = logging.getLogger(__name__)

WAIT_SECONDS = 300.0  # for a worker to start, to answer, to apply weights, to write
CLOSE_SECONDS = 30.0
DEATHS_LIMIT = 10  # of actors in one step (one call of `run` and the publication after it) before it gives up


@dataclass(frozen=True, kw_only=True, slots=True)
class GroupResult:
    """A finished group: summaries here, the trajectories (list of Scored; None if not kept) in the object store."""

    spec: GroupSpec
    episodes: tuple[EpisodeSummary, ...]
    trajectories: Any


@dataclass(frozen=True, kw_only=True, slots=True)
class _EpisodeActor:
    """An `EpisodeWorker`, and the name by which policy workers know its sessions."""

    identity: str
    actor: Any


class RolloutPool:
    """Episode workers, and policy workers when `model_config` is given. `levels`: how many, by domain."""

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
        self._deaths = 0
        self._started = itertools.count()
        self.policy_workers: list[Any] = []
        if model_config is not None:
            self.policy_workers = [self._policy_worker() for _ in range(rollout.policy_workers)]
        self.episode_workers = [self._episode_worker() for _ in range(rollout.episode_workers)]
        starting = [worker.actor.start.remote() for worker in self.episode_workers]
        starting += [worker.start.remote() for worker in self.policy_workers]
        self.levels: dict[str, int]
        with waiting("starting rollout workers"):
            try:
                self.levels, *_ = self.wait(starting, "start")
            except RayActorError as error:
                raise InfrastructureError(
                    f"a rollout worker died while it started ({_first_line(error)}; out of memory?): lower "
                    "rollout.slots, policy_workers or episode_workers, and run the same command again"
                ) from error

    def _episode_worker(self) -> _EpisodeActor:
        limits = EpisodeLimits(
            context=self._rollout.max_context,
            thinking={Tier(name): tokens for name, tokens in self._rollout.thinking.items()},
            retries=self._rollout.retries,
            turn_deadline=self._rollout.turn_seconds,
            call_deadline=self._rollout.environment_seconds,
        )
        actor = ray.remote(EpisodeWorker).options(num_cpus=0, max_concurrency=1000)
        identity = f"episodes-{next(self._started)}"
        started = actor.remote(identity, self._environment, self._tokenizer, limits, self._variants)
        return _EpisodeActor(identity=identity, actor=started)

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
        while True:
            try:
                self.wait([worker.publish.remote(publication) for worker in self.policy_workers], "apply the weights")
                return
            except (RayActorError, PolicyLostError):
                self.replace_dead()

    def run(
        self,
        specs: Sequence[GroupSpec],
        on_group: Callable[[GroupResult], None] | None = None,
        *,
        keep_trajectories: bool = True,
    ) -> list[GroupResult]:
        """Play every group, at most `concurrent_episodes` at once per worker; results in the order of `specs`."""
        self._deaths = 0
        return _Run(self, specs, on_group, keep_trajectories).finish()

    def submit(self, spec: GroupSpec, place: int) -> tuple[Any, Any]:
        """Start one group on the worker of its place; references to its summaries and its trajectories."""
        worker = self.episode_workers[place % len(self.episode_workers)].actor
        policy = self.policy_workers[place % len(self.policy_workers)] if self.policy_workers else None
        summaries, trajectories = worker.run_group.options(num_returns=2).remote(spec, policy)
        return summaries, trajectories

    def replace_dead(self) -> None:
        """Restart the actors that do not answer; returns once all of them serve, policies the last publication.

        Raises InfrastructureError when they die again and again.
        """
        while True:
            actors = [*self.policy_workers, *(worker.actor for worker in self.episode_workers)]
            ends = [_end(actor) for actor in actors]
            policies = len(self.policy_workers)
            dead = [place for place, end in enumerate(ends[:policies]) if end]
            lost = [place for place, end in enumerate(ends[policies:]) if end]
            if not dead and not lost:
                return
            why = next(filter(None, ends))
            self._deaths += len(dead) + len(lost)
            if self._deaths > DEATHS_LIMIT:
                raise InfrastructureError(
                    f"rollout workers died {self._deaths} times in one step (the last: {why}; out of memory?): lower "
                    "rollout.concurrent_episodes or rollout.slots; the same command resumes from the last checkpoint"
                )
            log.warning("%d policy and %d episode workers died: starting new ones (%s)", len(dead), len(lost), why)
            with contextlib.suppress(RayActorError, PolicyLostError):  # the next round sees who died meanwhile
                self._replace(dead, lost)

    def _replace(self, dead: Sequence[int], lost: Sequence[int]) -> None:
        """New policy workers in the places `dead`, new episode workers in the places `lost`."""
        for place in dead:
            ray.kill(self.policy_workers[place])  # it may hang rather than be gone
            self.policy_workers[place] = self._policy_worker()
        orphans = [self.episode_workers[place].identity for place in lost]
        for place in lost:
            ray.kill(self.episode_workers[place].actor)
            self.episode_workers[place] = self._episode_worker()
        starting = [self.episode_workers[place].actor.start.remote() for place in lost]
        starting += [self.policy_workers[place].start.remote() for place in dead]
        self.wait(starting, "start again")
        asked = [worker.drop.remote(owner) for worker in self.policy_workers for owner in orphans]
        if self._publication is not None:
            asked += [self.policy_workers[place].publish.remote(self._publication) for place in dead]
        self.wait(asked, "apply the weights again")

    def record(self, results: Sequence[GroupResult], advantages: Sequence[Sequence[float]], **where: Any) -> Recording:
        """Write the trajectories of one step to Parquet (`path`, `step`, `run`), beside whatever comes next."""
        groups = [result.trajectories for result in results]
        return Recording(self, {"groups": groups, "advantages": advantages, **where})

    def wait(self, reference: Any, what: str) -> Any:
        """The value of a reference, with the time limit of the pool and errors of ours as themselves."""
        try:
            return ray.get(reference, timeout=WAIT_SECONDS)
        except GetTimeoutError as error:
            raise DeadlineError(f"waited {WAIT_SECONDS:g} s for a rollout worker to {what}") from error
        except RayTaskError as error:
            raise error.cause if isinstance(error.cause, Exception) else error from error

    def close(self) -> None:
        """Release sandboxes and end the actors."""
        for worker in self.episode_workers:
            try:
                ray.get(worker.actor.close.remote(), timeout=CLOSE_SECONDS)
            except (RayActorError, RayTaskError, GetTimeoutError) as error:
                log.warning("an episode worker did not close (%s); its sandboxes end with it", type(error).__name__)
        for actor in (*(worker.actor for worker in self.episode_workers), *self.policy_workers):
            ray.kill(actor)


class Recording:
    """Trajectories on their way to disk; started again if the worker that writes them dies."""

    def __init__(self, pool: RolloutPool, arguments: Mapping[str, Any]) -> None:
        self._pool, self._arguments = pool, arguments
        self._reference = self._start()

    def _start(self) -> Any:
        return self._pool.episode_workers[0].actor.record.remote(**self._arguments)

    def wait(self) -> None:
        """Until the file is whole. Raises InfrastructureError if it cannot be written."""
        while True:
            try:
                self._pool.wait(self._reference, "write trajectories")
                return
            except RayActorError:
                self._pool.replace_dead()
                self._reference = self._start()


class _Run:
    """One call of `RolloutPool.run`: a bounded number of groups in flight until all are done."""

    def __init__(
        self,
        pool: RolloutPool,
        specs: Sequence[GroupSpec],
        on_group: Callable[[GroupResult], None] | None,
        keep: bool,
    ) -> None:
        self.pool, self.specs, self.on_group, self.keep = pool, specs, on_group, keep
        self.waiting = deque(range(len(specs)))
        self.flying: dict[Any, tuple[int, Any]] = {}
        self.done: dict[int, GroupResult] = {}

    def finish(self) -> list[GroupResult]:
        rollout = self.pool._rollout
        room = rollout.concurrent_episodes * len(self.pool.episode_workers)
        deadline = rollout.deadline_seconds
        episodes = 0
        while self.waiting or self.flying:
            while self.waiting and (not self.flying or episodes + self.specs[self.waiting[0]].samples <= room):
                place = self.waiting.popleft()
                summaries, trajectories = self.pool.submit(self.specs[place], place)
                self.flying[summaries] = (place, trajectories)
                episodes += self.specs[place].samples
            ready, _ = ray.wait(list(self.flying), num_returns=1, timeout=deadline)
            if not ready:
                names = ", ".join(sorted({self.specs[p].domain for p, _ in self.flying.values()}))
                raise DeadlineError(f"no group of {names} finished within {deadline:g} s (rollout.deadline_seconds)")
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
            self.pool.replace_dead()
            self.waiting.append(place)
            return
        kept = trajectories if self.keep else None
        result = GroupResult(spec=self.specs[place], episodes=episodes, trajectories=kept)
        self.done[place] = result
        if self.on_group is not None:
            self.on_group(result)


def _end(worker: Any) -> str:
    """What ended a worker, in one line; nothing for one that serves."""
    try:
        ray.get(worker.check.remote(), timeout=WAIT_SECONDS)
    except RayActorError as error:
        return _first_line(error)
    except GetTimeoutError:
        return f"no answer within {WAIT_SECONDS:g} s"
    except RayTaskError as error:
        return " ".join(str(error.cause).split())
    return ""


def _first_line(error: RayActorError) -> str:
    """Ray tells the rest of its inner life in the lines below."""
    return str(error).strip().splitlines()[0]
