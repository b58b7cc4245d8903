"""MXFP4 against the format's text: nearest value by exhaustive search, scale by exponent arithmetic, known error."""

import math

import pytest
import torch

from k3rl.kernels.mxfp4 import BLOCK, dequantize, fake_quantize, quantize

VALUES = [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0]


def nearest(x: float) -> int:
    """Index of the nearest value by search; ties to the even index; beyond 6 saturates."""
    return min(range(8), key=lambda i: (abs(VALUES[i] - x), i % 2))


def scale_byte(largest: float) -> int:
    """Rule `even` by arithmetic: the exponent of the maximum rounded to two significant fraction bits, minus 2."""
    if largest == 0:
        return 0
    fraction, exponent = math.frexp(largest)  # fraction in [0.5, 1)
    exponent = exponent - 1 if fraction * 2 < 1.75 else exponent
    return min(max(exponent - 2 + 127, 0), 254)


def unpack(packed: torch.Tensor) -> list[int]:
    return [code for byte in packed.tolist() for code in (byte & 15, byte >> 4)]


def block(*values: float) -> torch.Tensor:
    return torch.tensor([*values, *[0.0] * (BLOCK - len(values))])


def test_codes_and_scales_follow_the_text_on_random_blocks():
    torch.manual_seed(0)
    weight = torch.randn(64, BLOCK) * torch.logspace(-30, 30, 64)[:, None]
    packed, scales = quantize(weight)
    for row, codes, (scale,) in zip(weight.tolist(), packed, scales.tolist(), strict=True):
        assert scale == scale_byte(max(abs(x) for x in row))
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


def test_error_on_gaussian_blocks_is_the_known_one():
    torch.manual_seed(1)
    weight = torch.randn(20_000, BLOCK)
    error = (fake_quantize(weight) - weight).square().mean().sqrt() / weight.square().mean().sqrt()
    assert error.item() == pytest.approx(0.1119, abs=3e-4)


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
