"""The Ray actor that owns environments: it plays groups of episodes, many at once, and never loads torch."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from pathlib import Path
from random import Random
from typing import Any

from k3rl.chat import XtmlRenderer, load_tokenizer
from k3rl.domains import make_domains
from k3rl.environment import Domain
from k3rl.errors import EnvironmentFault
from k3rl.observability.trajectories import write_trajectories
from k3rl.rollout.episode import EpisodeLimits, Policy, run_episode
from k3rl.rollout.group import EpisodeSummary, GroupSpec, summarize
from k3rl.rollout.remote_policy import RemotePolicy
from k3rl.rollout.scripted import ScriptedPolicy
from k3rl.types import Scored, Task


class EpisodeWorker:
    """Plays `GroupSpec`s. Made a Ray actor by the pool; every method may run many times at once."""

    def __init__(
        self, identity: str, environment: Mapping[str, Any], tokenizer: str, limits: EpisodeLimits, variants: int
    ) -> None:
        self._identity, self._environment, self._tokenizer = identity, environment, tokenizer
        self._limits, self._variants = limits, variants
        self._domains: dict[str, Domain] = {}

    async def start(self) -> dict[str, int]:
        """Make the domains; the number of levels of each. Not done at construction, where Ray would wrap an error."""
        self._domains = make_domains(self._environment)
        self._renderer = XtmlRenderer(load_tokenizer(self._tokenizer))
        return {name: domain.levels for name, domain in self._domains.items()}

    async def check(self) -> None:
        """Answers while it lives."""

    async def run_group(self, spec: GroupSpec, policy_worker: Any) -> tuple[list[EpisodeSummary], list[Scored]]:
        """Play every sample of the group; summaries for the driver, the whole for the learner."""
        domain = self._domains[spec.domain]
        task = _task(domain, spec)
        policy = self._policy(spec, policy_worker)
        played = await asyncio.gather(
            *(
                run_episode(
                    domain,
                    task,
                    policy,
                    self._renderer,
                    self._limits,
                    sample=sample,
                    seed=spec.sample_seed(sample),
                )
                for sample in range(spec.samples)
            ),
            return_exceptions=True,  # every episode has released what it held before the group is told lost
        )
        scored = []
        for outcome in played:
            if isinstance(outcome, BaseException):
                raise outcome
            scored.append(outcome)
        return [summarize(s) for s in scored], scored

    def _policy(self, spec: GroupSpec, policy_worker: Any) -> Policy:
        if spec.player == "model":
            return RemotePolicy(worker=policy_worker, owner=self._identity, temperature=spec.temperature)
        domain = self._domains[spec.domain]
        variant = Random(spec.sample_seed(0)).randrange(self._variants)

        def script(task: Task) -> Any:
            return domain.solve(task, variant)

        return ScriptedPolicy(script=script, renderer=self._renderer)

    async def record(
        self, path: str, step: int, run: str, groups: Sequence[Any], advantages: Sequence[Sequence[float]]
    ) -> None:
        """Write one step's trajectories; `groups` are references to what `run_group` returned second."""
        scored = [s for group in await asyncio.gather(*groups) for s in group]
        flat = [a for group in advantages for a in group]
        told = [None if s.score is None else a for s, a in zip(scored, flat, strict=True)]
        await asyncio.to_thread(write_trajectories, Path(path), scored, advantages=told, step=step, run=run)

    async def close(self) -> None:
        """Release every domain's sandboxes."""
        await asyncio.gather(*(domain.close() for domain in self._domains.values()))


def _task(domain: Domain, spec: GroupSpec) -> Task:
    try:
        return domain.task(spec.split, seed=spec.seed, level=spec.level, index=spec.index, family=spec.family)
    except Exception as error:  # anybody's code: told with what it was asked for
        raise EnvironmentFault(
            f"domain {spec.domain} could not make task {spec.index} of {spec.split}, level {spec.level}: "
            f"{type(error).__name__}: {error}"
        ) from error
