"""Which task comes next: a mixture over domains, a curriculum over levels, and a cursor into each task sequence.

Pure: `draw` and `update` return a new state. The state that a checkpoint holds has advanced only by what was trained
on, so a resumed run draws the same tasks again and never one twice.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from itertools import accumulate
from random import Random

from k3rl.config import CurriculumSection
from k3rl.rollout.group import EpisodeSummary, GroupSpec
from k3rl.types import Split

MEMORY = 0.8  # weight of the past in a level's running success, per step, and in its signal, per group
SETTLED = 3  # steps at a level before it may move
LEAST_SIGNAL = 0.1  # a level that teaches nothing now is still looked at this often, relative to one that always does


@dataclass(frozen=True, kw_only=True, slots=True)
class DomainState:
    """Level now, running success at it, steps since it moved; by level (JSON keys: as text) the next task index, and
    the running share of groups that were neither all right nor all wrong."""

    level: int
    success: float = 0.5
    steps: int = 0
    cursor: Mapping[str, int] = field(default_factory=dict)
    signal: Mapping[str, float] = field(default_factory=dict)


CurriculumState = Mapping[str, DomainState]
"""By domain."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Curriculum:
    """The rules; `levels` is the number of levels by domain."""

    settings: CurriculumSection
    levels: Mapping[str, int]
    seed: int

    def start(self) -> CurriculumState:
        """Where a new run begins."""
        return {name: DomainState(level=min(self.settings.start_level, self._top(name))) for name in self.levels}

    def draw(
        self,
        state: CurriculumState,
        *,
        step: int,
        groups: int,
        samples: int,
        temperature: float,
        split: Split = "train",
    ) -> tuple[list[GroupSpec], CurriculumState]:
        """The groups of optimizer step `step`, and the state once they have been trained on."""
        rng = Random(f"{self.seed}/{step}")
        cursors = {name: dict(domain.cursor) for name, domain in state.items()}
        specs = []
        for name in self._domains(rng, groups):
            level = self._level(rng, name, state[name])
            index = cursors[name].get(str(level), 0)
            cursors[name][str(level)] = index + 1
            specs.append(
                GroupSpec(
                    domain=name,
                    split=split,
                    level=level,
                    index=index,
                    samples=samples,
                    seed=self.seed,
                    temperature=temperature,
                )
            )
        return specs, {name: replace(domain, cursor=cursors[name]) for name, domain in state.items()}

    def update(self, state: CurriculumState, episodes: Sequence[EpisodeSummary]) -> CurriculumState:
        """Move each domain's level by the success seen at it: one up above the band, one down below it."""
        moved = {}
        for name, domain in state.items():
            domain = replace(domain, signal=_signal(domain.signal, [e for e in episodes if e.domain == name]))
            rewards = [
                float(e.success)
                for e in episodes
                if e.domain == name and e.level == domain.level and e.reward is not None
            ]
            moved[name] = self._move(name, domain, sum(rewards) / len(rewards)) if rewards else domain
        return moved

    def _move(self, name: str, domain: DomainState, seen: float) -> DomainState:
        steps = domain.steps + 1
        weight = max(1 - MEMORY, 1 / steps)
        success = (1 - weight) * domain.success + weight * seen
        low, high = self.settings.band
        if steps >= SETTLED and success > high and domain.level < self._top(name):
            return replace(domain, level=domain.level + 1, success=0.5, steps=0)
        if steps >= SETTLED and success < low and domain.level > 1:
            return replace(domain, level=domain.level - 1, success=0.5, steps=0)
        return replace(domain, success=success, steps=steps)

    def _top(self, name: str) -> int:
        return min(self.levels[name], self.settings.max_level)

    def _domains(self, rng: Random, groups: int) -> list[str]:
        """Shares by weight: each domain's number of groups is its share rounded up or down, and its share on average.

        Domains lie on a line, each as long as its share; whole groups stand on it one apart, from a drawn start.
        """
        names = sorted(self.levels)
        ends = list(accumulate(self.settings.weights.get(name, 1.0) for name in names))
        start = rng.random()
        places = (min((number + start) / groups, 1.0) * ends[-1] for number in range(groups))
        return [names[bisect_right(ends, place, hi=len(names) - 1)] for place in places]

    def _level(self, rng: Random, name: str, domain: DomainState) -> int:
        levels = range(1, self._top(name) + 1)
        if self.settings.spread == "uniform":
            return rng.choice(levels)
        if self.settings.spread == "signal":
            weights = [max(domain.signal.get(str(level), 1.0), LEAST_SIGNAL) for level in levels]
            return rng.choices(levels, weights)[0]
        if domain.level > 1 and rng.random() < self.settings.replay:
            return rng.randint(1, domain.level - 1)
        return domain.level


def _signal(past: Mapping[str, float], episodes: Sequence[EpisodeSummary]) -> dict[str, float]:
    """The running share, by level, of tasks whose episodes had different outcomes."""
    outcomes: dict[str, dict[str, set[bool]]] = {}
    for e in episodes:
        if e.reward is not None:
            outcomes.setdefault(str(e.level), {}).setdefault(e.task_id, set()).add(e.success)
    signal = dict(past)
    for level, tasks in sorted(outcomes.items()):
        for task in sorted(tasks):
            signal[level] = MEMORY * signal.get(level, 1.0) + (1 - MEMORY) * (len(tasks[task]) > 1)
    return signal


def to_json(state: CurriculumState) -> dict[str, dict[str, object]]:
    """For a checkpoint."""
    return {name: asdict(d) for name, d in state.items()}


def from_json(plain: Mapping[str, Mapping[str, object]]) -> CurriculumState:
    """What `to_json` made."""
    return {name: DomainState(**fields) for name, fields in plain.items()}  # type: ignore[arg-type]
