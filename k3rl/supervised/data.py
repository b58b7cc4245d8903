"""The batches of a stage: a pure function of the configuration and the step, so that a resumed run sees the same."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from random import Random
from types import MappingProxyType
from typing import TypeAlias

from k3rl.chat import XtmlRenderer
from k3rl.config import Config, StageSection
from k3rl.errors import UserError
from k3rl.supervised.conversations import folder_samples
from k3rl.supervised.copying import copy_sample, format_sample
from k3rl.supervised.demonstrations import Rendered, to_samples
from k3rl.supervised.unfinished import GIVEN_UP, stop_early
from k3rl.types import Sample

log = logging.getLogger(__name__)

Batches: TypeAlias = Callable[[int], list[Sample]]
"""Step (from 0) to the samples of that optimizer step."""

MAKERS = {"copy": copy_sample, "format": format_sample}
"""Sources that make examples as they are needed."""


def stage_batches(
    config: Config, stage: StageSection, renderer: XtmlRenderer, solutions: Callable[[], Sequence[Rendered]]
) -> Batches:
    """Batches of about `stage.batch_tokens` tokens from the stage's source; `solutions` is asked if that is them."""
    seed = f"{config.seed}/{stage.name}"
    if stage.source in MAKERS:
        return made_batches(renderer, stage, seed)
    if stage.source == "solutions":
        ending = renderer.assistant(GIVEN_UP)
        samples = to_samples(
            (
                replace(one, log=stop_early(one.log, ending, stage.unfinished, Random(f"{seed}/{one.key}")))
                for one in solutions()
            ),
            stage.prompt_weight,
        )
    else:
        samples = folder_samples(Path(stage.path), renderer, stage.prompt_weight)
    limit = config.rollout.max_context
    kept = [sample for sample in samples if len(sample.tokens) <= limit]
    if not kept:
        raise UserError(
            f"stage {stage.name}: no example of {len(samples)} fits rollout.max_context={limit} tokens; raise it"
        )
    if len(kept) < len(samples):
        log.warning(
            "stage %s: %d of %d examples are longer than rollout.max_context=%d tokens and left out",
            stage.name,
            len(samples) - len(kept),
            len(samples),
            limit,
        )
    return epoch_batches(kept, stage, seed, config.sft.shares)


def made_batches(renderer: XtmlRenderer, stage: StageSection, seed: str) -> Batches:
    """Fresh examples for every step."""
    make = MAKERS[stage.source]

    def batch(step: int) -> list[Sample]:
        rng = Random(f"{seed}/{step}")
        samples: list[Sample] = []
        tokens = 0
        while tokens < stage.batch_tokens:
            key = f"{stage.source}/{step}/{len(samples)}"
            samples.append(make(renderer, rng, key, stage, step / stage.steps))
            tokens += len(samples[-1].tokens)
        return samples

    return batch


def epoch_batches(
    samples: Sequence[Sample], stage: StageSection, seed: str, shares: Mapping[str, float] = MappingProxyType({})
) -> Batches:
    """Epochs over `samples`, each in an order of its own, cut into `stage.steps` batches; see `sft.shares`."""
    times = [shares.get(sample.domain, 1.0) for sample in samples]
    plan = _plan([len(sample.tokens) for sample in samples], times, stage.batch_tokens, stage.steps, seed)

    def batch(step: int) -> list[Sample]:
        # The same example may stand twice where a batch spans two epochs: its place makes the key unique.
        return [replace(samples[i], key=f"{samples[i].key}@{place}") for place, i in enumerate(plan[step])]

    return batch


def _plan(lengths: Sequence[int], times: Sequence[float], batch_tokens: int, steps: int, seed: str) -> list[list[int]]:
    """Indices of the samples of each step. `times` 1.3: once in every epoch, twice in 3 of 10."""
    plan: list[list[int]] = []
    batch: list[int] = []
    tokens = epoch = 0
    while len(plan) < steps:
        rng = Random(f"{seed}/{epoch}")
        order = [index for index, mean in enumerate(times) for _ in range(int(mean + rng.random()))]
        rng.shuffle(order)
        for index in order:
            batch.append(index)
            tokens += lengths[index]
            if tokens >= batch_tokens:
                plan.append(batch)
                batch, tokens = [], 0
        epoch += 1
    return plan[:steps]
