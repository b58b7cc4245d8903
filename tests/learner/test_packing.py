"""Packing: alignment against a walk over single tokens, determinism, budget, and equal work for ranks."""

import itertools
import random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from k3rl.errors import ConfigError
from k3rl.learner.packing import domain_names, pack, total_weight
from k3rl.types import Batch, Routes, Sample

M, K, D, S = 2, 3, 1, 4


def sample(key: str, length: int, *, domain: str = "a", routes: bool = False) -> Sample:
    """Every value tells its sample and its index: number * 1000 + t."""
    base = int(key) * 1000 + np.arange(length)
    made = Routes(
        experts=np.tile((base % 30000)[:, None, None], (1, M, K)).astype(np.int16),
        selected=np.tile(base[:, None, None], (1, D, S)).astype(np.int32),
    )
    return Sample(
        key=key,
        domain=domain,
        tokens=base.astype(np.int32),
        loss_mask=(np.arange(length) % 3 > 0).astype(np.float32),
        advantages=base.astype(np.float32) + 0.25,
        logprobs=-base.astype(np.float32),
        entropies=base.astype(np.float32) + 0.5,
        versions=base.astype(np.int32) % 7,
        routes=made if routes else None,
    )


def sequences(batch: Batch) -> list[slice]:
    bounds = batch.cu_seqlens.tolist()
    return [slice(a, b) for a, b in itertools.pairwise(bounds)]


def test_signals_stand_where_their_token_is_predicted() -> None:
    samples = [sample(str(i), length, domain="ab"[i % 2], routes=True) for i, length in enumerate((5, 3, 9), start=1)]
    ((batch,),) = pack(samples, max_tokens=100)
    by_key = {s.key: s for s in samples}
    for part in sequences(batch):
        s = by_key[str(batch.tokens[part][0] // 1000)]
        for t in range(len(s.tokens)):
            at = part.start + t
            assert batch.tokens[at] == s.tokens[t]
            assert batch.domains[at] == "ab".index(s.domain)
            assert (batch.experts[at] == s.routes.experts[t]).all(), "routes are those of processing this very token"
            assert (batch.selected[at] == s.routes.selected[t]).all()
            if t + 1 < len(s.tokens):
                assert batch.targets[at] == s.tokens[t + 1]
                assert batch.loss_mask[at] == s.loss_mask[t + 1]
                assert batch.advantages[at] == s.advantages[t + 1]
                assert batch.logprobs[at] == s.logprobs[t + 1]
                assert batch.entropies[at] == s.entropies[t + 1]
                assert batch.versions[at] == s.versions[t + 1]
            else:
                assert batch.targets[at] == s.tokens[t]
                assert batch.loss_mask[at] == 0.0
                assert batch.versions[at] == -1


lengths = st.lists(st.integers(2, 40), min_size=1, max_size=30)


@given(lengths, st.integers(1, 4), st.integers(40, 90))
def test_every_sample_once_within_budget_and_equal_work(sizes: list[int], ranks: int, budget: int) -> None:
    samples = [sample(str(i), n) for i, n in enumerate(sizes)]
    packed = pack(samples, max_tokens=budget, ranks=ranks)
    assert len(packed) == ranks
    assert len({len(batches) for batches in packed}) == 1
    seen = []
    weight = 0.0
    for batch in (b for batches in packed for b in batches):
        assert len(batch.tokens) <= budget
        weight += float(batch.loss_mask.sum())
        if batch.domains.max() >= 0:
            seen += [int(batch.tokens[part][0]) // 1000 for part in sequences(batch)]
    assert sorted(seen) == list(range(len(sizes)))
    assert weight == total_weight(samples)
    fewest = -(-sum(sizes) // budget)
    assert sum(len(b) for b in packed) <= 2 * fewest + ranks


@given(lengths, st.integers(1, 3), st.randoms())
def test_arrival_order_changes_nothing(sizes: list[int], ranks: int, rng: random.Random) -> None:
    samples = [sample(str(i), n) for i, n in enumerate(sizes)]
    shuffled = rng.sample(samples, len(samples))
    one, two = (pack(s, max_tokens=64, ranks=ranks) for s in (samples, shuffled))
    for a, b in zip((x for r in one for x in r), (x for r in two for x in r), strict=True):
        np.testing.assert_array_equal(a.tokens, b.tokens)
        np.testing.assert_array_equal(a.loss_mask, b.loss_mask)
    assert total_weight(samples) == total_weight(shuffled)


def test_similar_lengths_share_a_micro_batch() -> None:
    samples = [sample(str(i), 10 if i % 2 else 50) for i in range(20)]
    ((short, *_), _) = pack(samples, max_tokens=100, ranks=2)
    assert set(np.diff(short.cu_seqlens)) == {10}


def test_a_rank_without_a_sequence_counts_for_nothing() -> None:
    first, second = pack([sample("1", 8)], max_tokens=100, ranks=2)
    assert first[0].loss_mask.sum() == 5
    assert second[0].loss_mask.sum() == 0
    assert (second[0].versions == -1).all()
    assert (second[0].domains == -1).all()


def test_what_cannot_be_packed_is_refused_with_its_name() -> None:
    with pytest.raises(ConfigError, match=r"'7' has 30 tokens, a micro-batch holds 20"):
        pack([sample("7", 30)], max_tokens=20)
    with pytest.raises(ConfigError, match="'7' is in the step twice"):
        pack([sample("7", 3), sample("7", 4)], max_tokens=20)
    with pytest.raises(ConfigError, match="replay all of them or none"):
        pack([sample("1", 3, routes=True), sample("2", 3)], max_tokens=20)
    with pytest.raises(ConfigError, match="at least one sample"):
        pack([], max_tokens=20)


def test_domains_are_indexed_in_alphabetical_order() -> None:
    assert domain_names([sample("1", 3, domain="office"), sample("2", 3, domain="code")]) == ("code", "office")
