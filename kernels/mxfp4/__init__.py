"""MXFP4: 4-bit floats with one power-of-two scale per 32 values along the input axis."""

from k3rl.kernels.mxfp4.cpu import grouped_matmul, matmul
from k3rl.kernels.mxfp4.reference import (
    BLOCK,
    ScaleRule,
    dequantize,
    fake_quantize,
    quantize,
)

__all__ = ["BLOCK", "ScaleRule", "dequantize", "fake_quantize", "grouped_matmul", "matmul", "quantize"]
