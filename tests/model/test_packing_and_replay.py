"""Packed sequences never see one another; replayed routes and selections are used, and gradients reach the router."""

import pytest
import torch
from model_cases import bounds, random_tokens, roughen

from k3rl.errors import UserError
from k3rl.model import Model, Replay, preset

LENGTHS = (1, 37, 100, 16, 3)


@pytest.fixture
def exact() -> Model:
    torch.manual_seed(0)
    return roughen(Model(preset("nano").with_vocabulary(200))).double()


def loss_of(model: Model, tokens: torch.Tensor, cu_seqlens: torch.Tensor, replay: Replay | None = None):
    out = model(tokens, cu_seqlens, replay)
    weight = torch.randn(out.logits.shape, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    return out, weight


def gradients(model: Model, loss: torch.Tensor) -> dict[str, torch.Tensor]:
    model.zero_grad()
    loss.backward()
    return {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}


def test_packing_equals_each_sequence_alone_in_values_and_gradients(exact: Model):
    tokens, cu = random_tokens(sum(LENGTHS)), bounds(*LENGTHS)
    out, weight = loss_of(exact, tokens, cu)
    packed = gradients(exact, (out.logits * weight).sum())
    total = 0.0
    for a, b in zip(cu[:-1].tolist(), cu[1:].tolist(), strict=True):
        alone = exact(tokens[None, a:b])
        torch.testing.assert_close(alone.logits[0], out.logits[a:b], rtol=1e-9, atol=1e-10)
        assert torch.equal(alone.experts[0], out.experts[a:b])
        total = total + (alone.logits[0] * weight[a:b]).sum()
    for name, gradient in gradients(exact, total).items():
        torch.testing.assert_close(packed[name], gradient, rtol=1e-8, atol=1e-9, msg=lambda m, name=name: f"{name} {m}")


def test_a_token_never_changes_what_came_before_it(exact: Model):
    first, second = random_tokens(120, 1), random_tokens(120, 1)
    second[90:] = random_tokens(30, 2)
    with torch.no_grad():
        a, b = exact(first[None]).logits[0], exact(second[None]).logits[0]
    torch.testing.assert_close(a[:90], b[:90], rtol=1e-11, atol=1e-11)
    assert not torch.allclose(a[90:], b[90:])


def test_replay_is_used_and_rows_of_minus_one_choose_freely(exact: Model):
    tokens, cu = random_tokens(120), bounds(120)
    with torch.no_grad():
        free = exact(tokens, cu)
        experts = (free.experts + 1) % 8
        experts = experts.sort(-1).values
        experts[50:60] = -1
        selected = free.selected.clone()
        selected[100, 0] = torch.arange(64)
        out = exact(tokens, cu, Replay(experts=experts, selected=selected), want=("choices",))
    assert torch.equal(out.experts[:50], experts[:50])
    assert torch.equal(out.experts[50:60], out.own_experts[50:60])
    assert torch.equal(out.selected, selected)
    assert torch.equal(out.own_experts[:, 0], free.experts[:, 0])  # nothing above the first router was replayed
    assert (out.logits - free.logits).abs().max() > 1e-3


def test_replaying_its_own_choices_changes_nothing(exact: Model):
    tokens, cu = random_tokens(120), bounds(70, 50)
    free, weight = loss_of(exact, tokens, cu)
    wanted = gradients(exact, (free.logits * weight).sum())
    out, _ = loss_of(exact, tokens, cu, Replay(experts=free.experts, selected=free.selected))
    torch.testing.assert_close(out.logits, free.logits, rtol=1e-12, atol=1e-12)
    for name, gradient in gradients(exact, (out.logits * weight).sum()).items():
        torch.testing.assert_close(gradient, wanted[name], rtol=1e-10, atol=1e-11)


def test_gradients_reach_the_router_through_replayed_routes(exact: Model):
    tokens, cu = random_tokens(40), bounds(40)
    with torch.no_grad():
        free = exact(tokens, cu)
    out, weight = loss_of(exact, tokens, cu, Replay(experts=free.experts, selected=free.selected))
    router = exact.layers[2].feed_forward.router
    (gradient,) = torch.autograd.grad((out.logits * weight).sum(), router)
    direction, step = torch.randn_like(router), 1e-6
    values = []
    for sign in (1, -1):
        with torch.no_grad():
            router.add_(direction, alpha=sign * step)
            again, _ = loss_of(exact, tokens, cu, Replay(experts=free.experts, selected=free.selected))
            values.append((again.logits * weight).sum())
            router.sub_(direction, alpha=sign * step)
    slope = (values[0] - values[1]) / (2 * step)
    assert gradient.abs().max() > 0
    assert (gradient * direction).sum().item() == pytest.approx(slope.item(), rel=1e-5)


def test_forward_and_backward_are_reproducible_bit_for_bit(nano: Model):
    tokens, cu = random_tokens(sum(LENGTHS)), bounds(*LENGTHS)
    runs = [gradients(nano, nano(tokens, cu).logits.log_softmax(-1)[:, 0].sum()) for _ in range(2)]
    assert all(torch.equal(runs[0][name], runs[1][name]) for name in runs[0])


def test_logits_of_some_positions_are_those_of_all(nano: Model):
    tokens, cu = random_tokens(50), bounds(20, 30)
    at = torch.tensor([3, 19, 49])
    with torch.no_grad():
        some, everything = nano(tokens, cu, logits_at=at).logits, nano(tokens, cu).logits
    torch.testing.assert_close(some, everything[at])


@pytest.mark.parametrize("cu", [[0, 5], [1, 10], [0, 4, 4, 10]])
def test_wrong_bounds_are_refused(nano: Model, cu: list[int]):
    with pytest.raises(UserError, match="cu_seqlens"):
        nano(random_tokens(10), torch.tensor(cu, dtype=torch.int32))


def test_an_unknown_tap_is_refused_with_the_known_ones(nano: Model):
    with pytest.raises(UserError, match="hidden"):
        nano(random_tokens(4)[None], want=("hiden",))
