"""MXFP4 against the format's text: nearest value by exhaustive search, scale by exponent arithmetic, known error."""

import math

import pytest
import torch

from k3rl.kernels.mxfp4 import BLOCK, dequantize, fake_quantize, quantize
from k3rl.kernels.mxfp4.reference import RULES

VALUES = [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0]


def nearest(x: float) -> int:
    """Index of the nearest value by search; ties to the even index; beyond 6 saturates."""
    return min(range(8), key=lambda i: (abs(VALUES[i] - x), i % 2))


def scale_byte(largest: float, rule: str = "even") -> int:
    """By arithmetic on largest = significand x 2^exponent: the exponent minus 2, one more from the significand at which
    a rule moves up."""
    if largest == 0:
        return 0
    fraction, exponent = math.frexp(largest)  # fraction in [0.5, 1)
    significand, exponent = 2 * fraction, exponent - 1
    up = {"even": significand >= 1.75, "floor": False, "rceil": significand > 1.5}[rule]
    return min(max(exponent + up - 2 + 127, 0), 254)


def unpack(packed: torch.Tensor) -> list[int]:
    return [code for byte in packed.tolist() for code in (byte & 15, byte >> 4)]


def block(*values: float) -> torch.Tensor:
    return torch.tensor([*values, *[0.0] * (BLOCK - len(values))])


@pytest.mark.parametrize("rule", RULES)
def test_codes_and_scales_follow_the_text_on_random_blocks(rule):
    torch.manual_seed(0)
    weight = torch.randn(64, BLOCK) * torch.logspace(-30, 30, 64)[:, None]
    packed, scales = quantize(weight, rule=rule)
    for row, codes, (scale,) in zip(weight.tolist(), packed, scales.tolist(), strict=True):
        assert scale == scale_byte(max(abs(x) for x in row), rule)
        wanted = [nearest(abs(x) / 2.0 ** (scale - 127)) | (8 if x < 0 else 0) for x in row]
        assert unpack(codes) == wanted


def test_ties_go_to_the_even_code():
    ties = (0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5.0)
    packed, scales = quantize(block(6.0, *ties))
    assert scales.item() == 127
    assert [VALUES[i] for i in unpack(packed)[1:8]] == [0, 1, 1, 2, 2, 4, 4]
    assert fake_quantize(block(6.0, *ties))[1:8].tolist() == [0, 1, 1, 2, 2, 4, 4]


def test_low_nibble_is_the_even_position():
    packed, _ = quantize(block(6.0, -0.5))
    assert packed[0].item() == 7 | (9 << 4)


def test_a_zero_block_has_zero_bytes_whatever_its_signs():
    packed, scales = quantize(torch.full((2, BLOCK), -0.0))
    assert packed.eq(0).all()
    assert scales.eq(0).all()


def test_a_tiny_block_keeps_its_values_at_the_smallest_scale():
    weight = block(2.0**-127 * 3, -(2.0**-127))
    packed, scales = quantize(weight)
    assert scales.item() == 0
    assert torch.equal(dequantize(packed, scales), weight)


def test_scale_byte_255_is_nan():
    packed = torch.full((1, 16), 0x77, dtype=torch.uint8)
    assert dequantize(packed, torch.tensor([[255]], dtype=torch.uint8)).isnan().all()


@pytest.mark.parametrize("bad", [torch.nan, torch.inf, -torch.inf])
def test_a_non_finite_weight_is_refused_by_name(bad: float):
    with pytest.raises(ValueError, match=r"layers\.1\.w2.*non-finite"):
        quantize(block(1.0, bad), name="layers.1.w2")


def test_a_ragged_input_axis_is_refused():
    with pytest.raises(ValueError, match="33"):
        quantize(torch.ones(2, 33))


@pytest.mark.parametrize(("rule", "known"), [("even", 0.1119), ("floor", 0.1150), ("rceil", 0.1154)])
def test_error_on_gaussian_blocks_is_the_known_one(rule, known):
    torch.manual_seed(1)
    weight = torch.randn(20_000, BLOCK)
    error = (fake_quantize(weight, rule=rule) - weight).square().mean().sqrt() / weight.square().mean().sqrt()
    assert error.item() == pytest.approx(known, abs=3e-4)


@pytest.mark.parametrize(
    ("rule", "scale"), [("even", (125, 126, 126)), ("floor", (125, 125, 125)), ("rceil", (125, 126, 126))]
)
def test_rules_part_where_a_maximum_would_saturate(rule, scale):
    """1.5 fits the lower scale under every rule, and neither 1.75 nor 1.99 does but by saturating."""
    for largest, wanted in zip((1.5, 1.75, 1.99), scale, strict=True):
        assert quantize(block(largest), rule=rule)[1].item() == wanted
    assert quantize(block(1.5 + 2.0**-23), rule="rceil")[1].item() == 126


def test_values_of_rceil_are_kept_though_its_bytes_are_not():
    """6.1 moves the scale up and is rounded to 6, which needs the lower scale alone."""
    packed, scales = quantize(block(6.1, 2.0), rule="rceil")
    values = dequantize(packed, scales)
    again = quantize(values, rule="rceil")
    assert (scales.item(), again[1].item()) == (128, 127)
    assert torch.equal(dequantize(*again), values)


def test_stochastic_rounding_is_right_on_average():
    """4,096 draws of each of 31 magnitudes up to 6 under scale 1: within five standard errors of the magnitude, and
    only ever the two values around it."""
    weight = block(6.0, *(torch.arange(31) * 0.19 + 0.01).tolist()) * torch.tensor([1.0, -1.0]).repeat(16)
    draws = dequantize(*quantize(weight.expand(4096, -1), rule="rceil", generator=torch.Generator().manual_seed(3)))
    for magnitude, sign, column in zip(weight.abs().tolist(), weight.sign().tolist(), draws.T, strict=True):
        low = max(v for v in VALUES if v <= magnitude)
        high = min(v for v in VALUES if v >= magnitude)
        assert set((column * sign).tolist()) <= {low, high}
        error = ((high - magnitude) * (magnitude - low) / 4096) ** 0.5
        assert abs((column * sign).mean().item() - magnitude) <= 5 * error + 1e-6


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_fake_quantize_is_what_the_bytes_say_and_is_idempotent(dtype: torch.dtype):
    torch.manual_seed(2)
    weight = (torch.randn(8, 3, 96) * 10.0 ** torch.randint(-6, 6, (8, 3, 1))).to(dtype)
    values = fake_quantize(weight)
    packed, scales = quantize(weight)
    assert values.dtype == dtype
    assert torch.equal(values, dequantize(packed, scales, dtype))
    assert torch.equal(fake_quantize(values), values)
    again = quantize(values)
    assert torch.equal(again[0], packed)
    assert torch.equal(again[1], scales)


def test_the_gradient_passes_straight_through():
    weight = torch.randn(4, 64, requires_grad=True)
    gradient = torch.randn(4, 64)
    fake_quantize(weight).backward(gradient)
    assert torch.equal(weight.grad, gradient)
