"""Samples to micro-batches: packed end to end, the same whatever order samples arrived in, alike for every rank.

Numpy only. A sample's signal at index t is about predicting tokens[t]; a batch's is aligned with the position that
predicts, t - 1. Routes are about processing a token, so they stay where they are: the position that processes
tokens[t] chose experts[t] on the way to predicting tokens[t + 1].
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from k3rl.errors import ConfigError
from k3rl.types import Batch, Sample

Bin = list[Sample]


def pack(samples: Sequence[Sample], *, max_tokens: int, ranks: int = 1) -> tuple[tuple[Batch, ...], ...]:
    """One tuple of micro-batches per rank, all of the same length; every sample is in exactly one of them.

    A micro-batch holds at most `max_tokens` tokens, of sequences of similar length (attention pads to the longest).
    Ranks run the same number of micro-batches, as sharded optimizers need: where there are too few sequences, a rank
    gets a copy of a short one with loss mask 0 and domain -1. Raises ConfigError on a sequence longer than the budget.
    """
    if not samples:
        raise ConfigError("an optimizer step needs at least one sample")
    keys = [sample.key for sample in samples]
    if len(set(keys)) < len(keys):
        twice = next(key for key in keys if keys.count(key) > 1)
        raise ConfigError(f"sample {twice!r} is in the step twice: a trajectory is trained on once")
    ordered = sorted(samples, key=lambda sample: (len(sample.tokens), sample.key))
    longest = ordered[-1]
    if len(longest.tokens) > max_tokens:
        raise ConfigError(
            f"sample {longest.key!r} has {len(longest.tokens)} tokens, a micro-batch holds {max_tokens}: "
            "raise the learner's max_tokens, or lower the context limit of episodes"
        )
    domains = {name: index for index, name in enumerate(domain_names(samples))}
    bins = _spread(ordered, max_tokens, ranks)
    batches = [to_batch(members, domains) for members in bins]
    while len(batches) % ranks:
        batches.append(_unweighted(to_batch(ordered[:1], domains)))
    # Neighbouring bins have similar lengths: dealing them out in turn keeps ranks in step.
    return tuple(tuple(batches[rank::ranks]) for rank in range(ranks))


def domain_names(samples: Sequence[Sample]) -> tuple[str, ...]:
    """The step's domains, in the order that `Batch.domains` indexes."""
    return tuple(sorted({sample.domain for sample in samples}))


def total_weight(samples: Sequence[Sample]) -> float:
    """Sum of loss masks over predicted tokens: the denominator of the step, the same on every rank and in any order."""
    return float(np.sort(np.concatenate([s.loss_mask[1:] for s in samples])).sum(dtype=np.float64))


def _spread(ordered: Bin, max_tokens: int, ranks: int) -> list[Bin]:
    """Consecutive runs within the budget: the least number that ranks divide, then the evenest such split."""
    fewest = len(_runs(ordered, max_tokens))
    count = -(-fewest // ranks) * ranks
    low, high = max(len(s.tokens) for s in ordered), max_tokens
    while low < high:  # the smallest budget that still gives no more than `count` runs
        middle = (low + high) // 2
        if len(_runs(ordered, middle)) <= count:
            high = middle
        else:
            low = middle + 1
    bins = _runs(ordered, low)
    while len(bins) < min(count, len(ordered)):
        index = max(range(len(bins)), key=lambda i: len(bins[i]))
        half = len(bins[index]) // 2
        bins[index : index + 1] = [bins[index][:half], bins[index][half:]]
    return bins


def _runs(ordered: Bin, budget: int) -> list[Bin]:
    """Cut the sequence of samples wherever the next one would not fit."""
    bins: list[Bin] = []
    room = 0
    for sample in ordered:
        length = len(sample.tokens)
        if length > room:
            bins.append([])
            room = budget
        bins[-1].append(sample)
        room -= length
    return bins


def to_batch(members: Sequence[Sample], domains: dict[str, int]) -> Batch:
    """Pack whole sequences end to end; `domains` maps names to the indices of `Batch.domains`."""
    lengths = [len(sample.tokens) for sample in members]
    routed = {sample.routes is not None for sample in members}
    if len(routed) > 1:
        raise ConfigError("some samples of a micro-batch carry routes and some do not: replay all of them or none")
    routes = [sample.routes for sample in members if sample.routes is not None]
    return Batch(
        tokens=np.concatenate([s.tokens for s in members]).astype(np.int64),
        targets=np.concatenate([_ahead(s.tokens, s.tokens[-1]) for s in members]).astype(np.int64),
        loss_mask=np.concatenate([_ahead(s.loss_mask, 0.0) for s in members]).astype(np.float32),
        advantages=np.concatenate([_ahead(s.advantages, 0.0) for s in members]).astype(np.float32),
        logprobs=np.concatenate([_ahead(s.logprobs, 0.0) for s in members]).astype(np.float32),
        entropies=np.concatenate([_ahead(s.entropies, 0.0) for s in members]).astype(np.float32),
        versions=np.concatenate([_ahead(s.versions, -1) for s in members]).astype(np.int32),
        cu_seqlens=np.cumsum([0, *lengths]).astype(np.int32),
        domains=np.repeat([domains[s.domain] for s in members], lengths).astype(np.int32),
        experts=np.concatenate([r.experts for r in routes]).astype(np.int64) if routes else None,
        selected=np.concatenate([r.selected for r in routes]).astype(np.int64) if routes else None,
    )


def _ahead(values_T: NDArray[Any], last: float) -> NDArray[Any]:
    """Signals about tokens[t], moved to the position that predicts it; the last position predicts nothing."""
    return np.append(values_T[1:], np.asarray([last], dtype=values_T.dtype))


def _unweighted(batch: Batch) -> Batch:
    """The same micro-batch, counting for nothing; its domain is -1."""
    zero = np.zeros_like(batch.loss_mask)
    return Batch(
        tokens=batch.tokens,
        targets=batch.targets,
        loss_mask=zero,
        advantages=zero,
        logprobs=zero,
        entropies=zero,
        versions=np.full_like(batch.versions, -1),
        cu_seqlens=batch.cu_seqlens,
        domains=np.full_like(batch.domains, -1),
        experts=batch.experts,
        selected=batch.selected,
    )
