"""The sampler against softmax, written-out arithmetic and the published SplitMix64 sequence."""

import math

import numpy as np
import pytest
import torch

from k3rl.inference.sampler import draw, uniforms


@pytest.fixture(params=["c++", "torch"])
def sampler(request, monkeypatch):
    """What samples: C++, or torch as without a compiler."""
    if request.param == "torch":
        monkeypatch.setattr("k3rl.inference.sampler.library", lambda: None)
    return request.param


def _splitmix64(seed, count):
    """The generator as its authors wrote it, in Python integers."""
    mask, out = 2**64 - 1, []
    for _ in range(count):
        seed = (seed + 0x9E3779B97F4A7C15) & mask
        z = seed
        z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & mask
        z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & mask
        out.append(z ^ (z >> 31))
    return out


def test_the_hash_is_splitmix64_started_at_the_mixed_seed():
    assert _splitmix64(1234567, 2) == [6457827717110365317, 3203168211198807973]  # the published test vector
    for seed in (0, 1, 2**64 - 1, 123456789):
        stream = _splitmix64(_splitmix64(seed, 1)[0], 5)
        got = uniforms(np.full(5, seed, np.uint64), np.arange(5))
        assert got.tolist() == [(word >> 11) * 2.0**-53 for word in stream]


def test_uniforms_are_uniform_along_positions_and_along_seeds():
    """Chi-square over 64 cells, 63 degrees of freedom: mean 63, 99.9% quantile 103.4; and no serial correlation."""
    by_position = uniforms(np.full(100_000, 7, np.uint64), np.arange(100_000))
    by_seed = uniforms(np.arange(100_000, dtype=np.uint64), np.full(100_000, 300))
    for u in (by_position, by_seed):
        counts = np.bincount((u * 64).astype(int), minlength=64)
        assert ((counts - len(u) / 64) ** 2 / (len(u) / 64)).sum() < 103.4
        assert abs(np.corrcoef(u[1:], u[:-1])[0, 1]) < 4 / math.sqrt(len(u))
        assert u.min() >= 0
        assert u.max() < 1


@pytest.mark.usefixtures("sampler")
@pytest.mark.parametrize("temperature", [0.5, 1.0, 1.7])
def test_frequencies_follow_softmax_at_the_temperature(temperature):
    """Chi-square over 12 tokens, 11 degrees of freedom: 99.9% quantile 31.3."""
    logits = torch.linspace(-3, 3, 12)
    n = 40_000
    u = uniforms(np.full(n, 42, np.uint64), np.arange(n))
    tokens = draw(logits.expand(n, 12), np.full(n, temperature), u).tokens
    weights = [math.exp(x / temperature) for x in logits.tolist()]
    expected = n * np.array(weights) / sum(weights)
    assert ((np.bincount(tokens, minlength=12) - expected) ** 2 / expected).sum() < 31.3


@pytest.mark.usefixtures("sampler")
def test_logprob_and_entropy_are_those_of_the_tempered_distribution():
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(6, 37, generator=generator) * 4
    temperatures = np.array([1.0, 0.3, 2.0, 0.7, 1.0, 1.3])
    got = draw(logits, temperatures, uniforms(np.arange(6, dtype=np.uint64), np.arange(6)))
    for row in range(6):
        scaled = [x / temperatures[row] for x in logits[row].tolist()]
        total = math.fsum(math.exp(x) for x in scaled)
        p = [math.exp(x) / total for x in scaled]
        assert got.logprobs[row] == pytest.approx(math.log(p[got.tokens[row]]), abs=1e-13)
        assert got.entropies[row] == pytest.approx(-math.fsum(q * math.log(q) for q in p), abs=1e-13)


@pytest.mark.usefixtures("sampler")
def test_the_ends_of_the_uniform_interval_never_pick_an_impossible_token():
    logits = torch.tensor([[-1e30, 0.0, 1.0, -1e30]])  # the outer two have probability 0
    assert draw(logits, np.ones(1), np.array([0.0])).tokens.tolist() == [1]
    assert draw(logits, np.ones(1), np.array([1 - 2.0**-53])).tokens.tolist() == [2]


@pytest.mark.usefixtures("sampler")
def test_greedy_takes_the_lowest_of_equals_and_is_a_point_mass():
    logits = torch.tensor([[0.0, 3.0, 3.0, 1.0], [0.0, 1.0, 2.0, 3.0]])
    got = draw(logits, np.array([0.0, 1.0]), np.array([0.999, 0.0]))
    assert got.tokens.tolist() == [1, 0]
    assert got.logprobs[0] == got.entropies[0] == 0
    assert got.logprobs[1] < 0


@pytest.mark.usefixtures("sampler")
@pytest.mark.parametrize("vocabulary", [1500, 1503])
def test_a_row_does_not_depend_on_its_place_or_its_neighbours(vocabulary):
    generator = torch.Generator().manual_seed(1)
    row = torch.randn(vocabulary, generator=generator)
    seeds, positions = np.arange(9, dtype=np.uint64), np.arange(9) + 100
    seen = set()
    for place in range(9):
        logits = torch.randn(9, vocabulary, generator=generator)
        logits[place] = row
        seeds[place], positions[place] = 77, 5
        got = draw(logits, np.ones(9), uniforms(seeds, positions))
        seen.add((got.tokens[place], got.logprobs[place], got.entropies[place]))
    assert len(seen) == 1


@pytest.mark.usefixtures("sampler")
@pytest.mark.parametrize("bad", [math.nan, math.inf])
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_logits_that_are_not_finite_show_in_the_entropy_of_their_row_alone(bad, temperature):
    logits = torch.zeros(2, 5)
    logits[0, 3] = bad
    got = draw(logits, np.full(2, temperature), np.full(2, 0.5))
    assert not np.isfinite(got.entropies[0])
    assert np.isfinite(got.entropies[1])


def test_both_samplers_take_the_same_tokens_with_the_same_logprobs(monkeypatch):
    generator = torch.Generator().manual_seed(2)
    logits = torch.randn(200, 1379, generator=generator) * 5
    temperatures = np.where(np.arange(200) % 5 == 0, 0.0, 0.4 + np.arange(200) / 100)
    u = uniforms(np.arange(200, dtype=np.uint64), np.arange(200))
    compiled = draw(logits, temperatures, u)
    monkeypatch.setattr("k3rl.inference.sampler.library", lambda: None)
    plain = draw(logits, temperatures, u)
    assert compiled.tokens.tolist() == plain.tokens.tolist()
    np.testing.assert_allclose(compiled.logprobs, plain.logprobs, rtol=0, atol=1e-13)
    np.testing.assert_allclose(compiled.entropies, plain.entropies, rtol=0, atol=1e-12)
