"""The chunk form against the recurrence in float64: values and gradients, steep gates, near-equal keys, all tiles."""

import pytest
import torch
from torch.nn.functional import normalize

from k3rl.kernels.kda import chunk_kda, recurrent_kda, step_kda

NAMES = ("queries", "keys", "values", "gates", "betas", "state")


def inputs(rows: int = 3, length: int = 48, dk: int = 8, dv: int = 6, *, gate: float = -1.0, seed: int = 0):
    torch.manual_seed(seed)
    draw = lambda *shape: torch.randn(*shape, dtype=torch.float64)  # noqa: E731
    return [
        normalize(draw(rows, length, dk), dim=-1) * dk**-0.5,
        normalize(draw(rows, length, dk), dim=-1),
        draw(rows, length, dv),
        gate * torch.rand(rows, length, dk, dtype=torch.float64),
        torch.rand(rows, length, dtype=torch.float64),
        draw(rows, dk, dv),
    ]


def test_the_recurrence_is_the_text_token_by_token():
    q, k, v, g, beta, state = inputs(rows=1, length=4)
    outputs, last = recurrent_kda(q, k, v, g, beta, state)
    s = state[0]
    for t in range(4):
        s = torch.diag(g[0, t].exp()) @ s
        s = s + beta[0, t] * torch.outer(k[0, t], v[0, t] - s.T @ k[0, t])
        torch.testing.assert_close(outputs[0, t], s.T @ q[0, t], rtol=0, atol=1e-14)
    torch.testing.assert_close(last[0], s, rtol=0, atol=1e-14)


@pytest.mark.parametrize("length", [16, 48, 112])
@pytest.mark.parametrize("gate", [0.0, -0.1, -5.0])
@pytest.mark.parametrize("with_state", [True, False])
def test_values_and_gradients_equal_the_recurrence(length: int, gate: float, with_state: bool):
    tensors = [x.requires_grad_() for x in inputs(length=length, gate=gate)]
    used = tensors if with_state else tensors[:5]
    torch.manual_seed(9)
    results = []
    for form in (recurrent_kda, chunk_kda):
        outputs, last = form(*used)
        torch.manual_seed(3)
        loss = (outputs * torch.randn_like(outputs)).sum() + (last * torch.randn_like(last)).sum()
        results.append((outputs, last, *torch.autograd.grad(loss, used)))
    for name, wanted, got in zip(("outputs", "last", *NAMES), *results, strict=False):
        torch.testing.assert_close(got, wanted, rtol=1e-9, atol=1e-10, msg=lambda m, name=name: f"{name}: {m}")


def test_fp32_stays_accurate_at_the_steepest_gate():
    exact = inputs(length=64, dk=32, dv=32, gate=-5.0)
    exact[3].fill_(-5.0)
    outputs, last = recurrent_kda(*exact)
    got = chunk_kda(*(x.float() for x in exact))
    assert (got[0] - outputs).abs().max() < 1e-6
    assert (got[1] - last).abs().max() < 1e-6


def test_fp32_stays_accurate_with_near_equal_keys_and_no_decay():
    exact = inputs(length=128, dk=32, dv=32, gate=-1e-3)
    exact[1] = normalize(exact[1][:, :1] + 1e-3 * exact[1], dim=-1)
    exact[4].fill_(1.0)
    outputs, last = recurrent_kda(*exact)
    got = chunk_kda(*(x.float() for x in exact))
    scale = outputs.abs().max()
    assert (got[0] - outputs).abs().max() < 1e-5 * scale
    assert (got[1] - last).abs().max() < 1e-5 * last.abs().max()


@pytest.mark.parametrize("steepest", [-4.0, -9.0, -20.0, -50.0, -200.0])
def test_an_unbounded_gate_falls_back_to_smaller_tiles(steepest: float):
    exact = inputs(length=48, dk=16, dv=16, gate=steepest)
    exact[3][:, 5:40] = steepest
    outputs, last = recurrent_kda(*exact)
    got = chunk_kda(*(x.float() for x in exact), bounded=False)
    assert got[0].isfinite().all()
    assert (got[0] - outputs).abs().max() < 2e-6
    assert (got[1] - last).abs().max() < 2e-6


def test_silent_tokens_leave_the_state_unchanged():
    q, k, v, g, beta, state = inputs(length=32)
    g[:, 20:], beta[:, 20:] = 0.0, 0.0
    _, last = chunk_kda(q, k, v, g, beta, state)
    _, wanted = recurrent_kda(*(x[:, :20] for x in (q, k, v, g, beta)), state)
    torch.testing.assert_close(last, wanted, rtol=1e-11, atol=1e-12)


def test_one_step_is_the_recurrence_in_place_and_holds_inactive_rows_exactly():
    q, k, v, g, beta, state = (x.float() for x in inputs(length=1))
    wanted, last = recurrent_kda(q, k, v, g, beta, state)
    g[1], beta[1] = 0.0, 0.0
    held = state[1].clone()
    outputs = step_kda(q[:, 0], k[:, 0], v[:, 0], g[:, 0], beta[:, 0], state)
    torch.testing.assert_close(outputs[[0, 2]], wanted[[0, 2], 0])
    torch.testing.assert_close(state[[0, 2]], last[[0, 2]])
    assert torch.equal(state[1], held)


def test_a_length_off_the_tile_is_refused():
    with pytest.raises(ValueError, match="17"):
        chunk_kda(*inputs(length=17))
