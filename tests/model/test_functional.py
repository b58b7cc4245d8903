"""Hand-written blocks against their formula in plain torch, values and gradients, in float64."""

import pytest
import torch

from k3rl.model.functional import l2_norm, residual_mix_norm, rms_norm, silu_glu, situ_glu
from k3rl.model.kda import _ConvSilu


def plain_rms(x, weight, eps):
    return x / (x.square().mean(-1, keepdim=True) + eps).sqrt() * weight


def plain_situ(x, beta=4.0, linear_beta=25.0):
    g, u = x.chunk(2, dim=-1)
    return beta * torch.tanh(g / beta) * torch.sigmoid(g) * linear_beta * torch.tanh(u / linear_beta)


def plain_silu(x):
    g, u = x.chunk(2, dim=-1)
    return torch.nn.functional.silu(g) * u


def plain_l2(x, scale):
    return scale * x / (x.square().sum(-1, keepdim=True) + 1e-6).sqrt()


def plain_mix(weight, norm, *sources):
    stacked = torch.stack(sources)
    scores = (plain_rms(stacked, weight, 1e-5)).sum(-1)
    return plain_rms((scores.softmax(0).unsqueeze(-1) * stacked).sum(0), norm, 1e-5)


def plain_conv(x, weight):
    channels = x.shape[-1]
    padded = torch.nn.functional.pad(x.mT, (weight.shape[1] - 1, 0))
    return torch.nn.functional.silu(torch.nn.functional.conv1d(padded, weight.unsqueeze(1), groups=channels)).mT


def draw(*shape):
    return torch.randn(*shape, dtype=torch.float64, requires_grad=True)


CASES = {
    "rms": (lambda x, w: rms_norm(x, w, 1e-5), lambda x, w: plain_rms(x, w, 1e-5), lambda: (draw(7, 3, 6), draw(6))),
    "rms of tiny values": (
        lambda x, w: rms_norm(x * 1e-3, w, 1e-5),
        lambda x, w: plain_rms(x * 1e-3, w, 1e-5),
        lambda: (draw(7, 6), draw(6)),
    ),
    "situ": (lambda x: situ_glu(x * 9, 4.0, 25.0), lambda x: plain_situ(x * 9), lambda: (draw(5, 12),)),
    "silu": (silu_glu, plain_silu, lambda: (draw(5, 3, 12),)),
    "l2": (lambda x: l2_norm(x, 1e-6, 0.3), lambda x: plain_l2(x, 0.3), lambda: (draw(4, 5, 6),)),
    "mix of one": (
        lambda w, n, *v: residual_mix_norm(list(v), w, n, 1e-5),
        plain_mix,
        lambda: (draw(6), draw(6), draw(5, 6)),
    ),
    "mix of three": (
        lambda w, n, *v: residual_mix_norm(list(v), w, n, 1e-5),
        plain_mix,
        lambda: (draw(6), draw(6), draw(5, 6), draw(5, 6), draw(5, 6)),
    ),
    "conv": (_ConvSilu.apply, plain_conv, lambda: (draw(2, 9, 5), draw(5, 4))),
}


@pytest.mark.parametrize("name", CASES)
def test_values_and_gradients_follow_the_formula(name: str):
    torch.manual_seed(0)
    block, formula, inputs = CASES[name]
    tensors = inputs()
    got, wanted = block(*tensors), formula(*tensors)
    torch.testing.assert_close(got, wanted, rtol=1e-12, atol=1e-12)
    weight = torch.randn_like(wanted)
    for ours, theirs in zip(
        torch.autograd.grad((got * weight).sum(), tensors),
        torch.autograd.grad((wanted * weight).sum(), tensors),
        strict=True,
    ):
        torch.testing.assert_close(ours, theirs, rtol=1e-10, atol=1e-11)
