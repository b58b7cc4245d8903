"""The Ray actor that owns environments: it plays groups of episodes, many at once, and never loads torch."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from pathlib import Path
from random import Random
from typing import Any

from k3rl.chat import XtmlRenderer, load_tokenizer
from k3rl.domains import make_domains
from k3rl.observability.trajectories import write_trajectories
from k3rl.rollout.episode import EpisodeLimits, Policy, run_episode
from k3rl.rollout.group import EpisodeSummary, GroupSpec, summarize
from k3rl.rollout.remote_policy import RemotePolicy
from k3rl.rollout.scripted import ScriptedPolicy
from k3rl.types import Scored, Task


class EpisodeWorker:
    """Plays `GroupSpec`s. Made a Ray actor by the pool; every method may run many times at once."""

    def __init__(
        self, environment: Mapping[str, Any], tokenizer: str, limits: EpisodeLimits, variants: int = 1
    ) -> None:
        self._domains = make_domains(environment)
        self._renderer = XtmlRenderer(load_tokenizer(tokenizer))
        self._limits = limits
        self._variants = variants

    async def run_group(self, spec: GroupSpec, policy_worker: Any) -> tuple[list[EpisodeSummary], list[Scored]]:
        """Play every sample of the group; summaries for the driver, the whole for the learner."""
        domain = self._domains[spec.domain]
        task = domain.task(spec.split, seed=spec.seed, level=spec.level, index=spec.index, family=spec.family)
        policy = self._policy(spec, policy_worker)
        scored = await asyncio.gather(
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
            )
        )
        return [summarize(s) for s in scored], list(scored)

    def _policy(self, spec: GroupSpec, policy_worker: Any) -> Policy:
        if spec.player == "model":
            return RemotePolicy(worker=policy_worker, temperature=spec.temperature)
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
        await asyncio.to_thread(write_trajectories, Path(path), scored, advantages=flat, step=step, run=run)

    async def levels(self) -> dict[str, int]:
        """The number of levels by domain."""
        return {name: domain.levels for name, domain in self._domains.items()}

    async def close(self) -> None:
        """Release every domain's sandboxes."""
        await asyncio.gather(*(domain.close() for domain in self._domains.values()))
