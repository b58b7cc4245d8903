"""Mixtures of experts against the loop over experts; choice and routing weights against the formula."""

import pytest
import torch
from torch.nn.functional import silu

from k3rl.kernels.moe import (
    choose,
    dense_experts,
    grouped_experts,
    looped_experts,
    route_weights,
)


def swiglu(x: torch.Tensor) -> torch.Tensor:
    gate, up = x.chunk(2, dim=-1)
    return silu(gate) * up


def case(tokens: int, experts: int, k: int, seed: int = 0):
    torch.manual_seed(seed)
    draw = lambda *shape: torch.randn(*shape, dtype=torch.float64)  # noqa: E731
    ids = torch.rand(tokens, experts).topk(k).indices.sort().values
    weights = torch.rand(tokens, k, dtype=torch.float64)
    return draw(tokens, 6), ids, weights, draw(experts, 10, 6), draw(experts, 6, 5)


def test_the_loop_is_the_sum_over_chosen_experts():
    x, ids, weights, w13, w2 = case(tokens=4, experts=3, k=2)
    got = looped_experts(x, ids, weights, w13, w2, swiglu)
    for n in range(4):
        wanted = sum(weights[n, i] * (w2[e] @ swiglu(w13[e] @ x[n])) for i, e in enumerate(ids[n].tolist()))
        torch.testing.assert_close(got[n], wanted)


@pytest.mark.parametrize(("tokens", "experts", "k"), [(1, 4, 1), (17, 8, 2), (64, 3, 3), (5, 32, 4)])
def test_grouped_values_and_gradients_equal_the_loop(tokens: int, experts: int, k: int):
    x, ids, weights, w13, w2 = case(tokens, experts, k)
    floats = [t.requires_grad_() for t in (x, weights, w13, w2)]
    weight = torch.randn(tokens, 6, dtype=torch.float64)
    results = []
    for form in (looped_experts, grouped_experts):
        y = form(x, ids, weights, w13, w2, swiglu)
        results.append((y, *torch.autograd.grad((y * weight).sum(), floats)))
    for wanted, got in zip(*results, strict=True):
        torch.testing.assert_close(got, wanted, rtol=1e-11, atol=1e-12)


def test_the_dense_form_equals_the_loop():
    x, ids, weights, w13, w2 = case(tokens=9, experts=8, k=2)
    got = dense_experts(x, ids, weights, w13, w2.mT.contiguous(), swiglu)
    torch.testing.assert_close(got, looped_experts(x, ids, weights, w13, w2, swiglu), rtol=1e-12, atol=1e-12)


def test_choice_uses_the_bias_and_weights_do_not():
    scores = torch.tensor([[0.9, 0.5, 0.4, 0.1]])
    bias = torch.tensor([-1.0, 0.0, 0.0, 1.0])
    experts = choose(scores, bias, 2)
    assert experts.tolist() == [[1, 3]]
    weights = route_weights(scores, experts, renormalize=True, scaling=2.0)
    torch.testing.assert_close(weights, torch.tensor([[2 * 0.5 / 0.6, 2 * 0.1 / 0.6]]))
    plain = route_weights(scores, experts, renormalize=False, scaling=1.0)
    torch.testing.assert_close(plain, torch.tensor([[0.5, 0.1]]))
