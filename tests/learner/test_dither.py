"""Dithered masters: every byte stays, and the masters really fill their cells."""

import pytest
import torch

from k3rl.kernels.mxfp4 import dequantize, quantize
from k3rl.learner.dither import dither


def from_checkpoint(seed: int, shape: tuple[int, ...] = (6, 40, 64), size: float = 0.02) -> torch.Tensor:
    """Values as an MXFP4 checkpoint gives them."""
    weight = size * torch.randn(shape, generator=torch.Generator().manual_seed(seed))
    return dequantize(*quantize(weight))


@pytest.mark.parametrize("size", [1e-6, 0.02, 30.0])
def test_every_byte_stays(size: float) -> None:
    weight = from_checkpoint(0, size=size)
    spread = dither(weight, torch.Generator().manual_seed(1))
    for before, after in zip(quantize(weight), quantize(spread), strict=True):
        assert before.equal(after)
    assert (spread != weight).float().mean() > 0.99


def test_masters_fill_their_cells_evenly() -> None:
    """Magnitude 1 has the cell (0.75, 1.25): mean 1, deviation 0.5 / sqrt(12)."""
    weight = from_checkpoint(2, (200, 64, 64), size=1.0)
    scales = quantize(weight)[1]
    powers = torch.exp2(scales.float() - 127).repeat_interleave(32, dim=-1)
    spread = dither(weight, torch.Generator().manual_seed(3))
    ones = (spread / powers)[weight == powers]
    assert ones.numel() > 10_000
    assert ones.mean().item() == pytest.approx(1.0, abs=0.01)
    assert ones.std().item() == pytest.approx(0.5 / 12**0.5, rel=0.03)
    assert ones.min() < 0.76
    assert ones.max() > 1.24


def test_small_steps_move_codes_at_once() -> None:
    """A step of one direction moves about step / cell width of dithered codes, and none of undithered ones."""
    weight = from_checkpoint(4, (100, 64, 64), size=1.0)
    spread = dither(weight, torch.Generator().manual_seed(5))
    step = 1e-3
    flips = [
        (dequantize(*quantize(w + step)) != dequantize(*quantize(w))).float().mean().item() for w in (weight, spread)
    ]
    assert flips[0] == 0.0
    scales = quantize(weight)[1].float() - 127
    narrowest = step / (0.5 * torch.exp2(scales)).mean().item()
    assert 0.3 * narrowest < flips[1] < 3 * narrowest


def test_zero_blocks_and_blocks_of_another_scale_rule_keep_their_bytes() -> None:
    weight = torch.zeros(2, 64)
    weight[0, :32] = torch.linspace(-1.5, 1.5, 32)  # its codes are re-made, then held
    spread = dither(weight, torch.Generator().manual_seed(6))
    assert not spread[1].any()
    for before, after in zip(quantize(weight), quantize(spread), strict=True):
        assert before.equal(after)


def test_the_same_seed_gives_the_same_masters() -> None:
    weight = from_checkpoint(7)
    one, two = (dither(weight, torch.Generator().manual_seed(8)) for _ in range(2))
    assert one.equal(two)
