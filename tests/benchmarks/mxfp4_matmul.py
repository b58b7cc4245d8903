"""Products with MXFP4 weights against torch's linear in bfloat16 and fp32: `python tests/benchmarks/mxfp4_matmul.py`.

One thread (--threads); weights are sets of distinct matrices of --set-mb megabytes in all, visited in turn, so that no
cache holds them. Ours is timed with bfloat16 rows and with fp32 rows, which the engine's fp32 path uses. The mixture is
32 experts, 4 per token, 16 tokens: the rows sorted by expert, one call, beside torch's dense product of 16 rows. The
last line is JSON: `ratio` is ours (bfloat16 rows) against torch bfloat16 at one row, the least over the shapes;
`ratios` by case.
"""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Callable

import torch
from timing import interleaved, machine
from torch import Tensor
from torch.nn.functional import linear

from k3rl.kernels.cpu import PackedPanels
from k3rl.kernels.mxfp4 import BLOCK, grouped_matmul, matmul

SHAPES = ((3072, 3584), (3584, 3072))  # a K3 expert's up and down projections: [outputs, inputs]
ROWS = (1, 4, 16, 64)
EXPERTS, CHOSEN, TOKENS = 32, 4, 16


def main() -> None:
    """Time and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--set-mb", type=float, default=400)
    parser.add_argument("--rounds", type=int, default=7)
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    torch.manual_seed(0)
    print("GFLOP/s of                    ours bf16  ours fp32  torch bf16  torch fp32   ours bf16 / torch bf16")
    ratios = {}
    for out, inputs in SHAPES:
        for name, row in shape(out, inputs, arguments.set_mb * 1e6, arguments.rounds).items():
            ratios[name] = row["ours bf16"] / row["torch bf16"]
            figures = "".join(f"{row[kind]:11.1f}" if kind in row else " " * 11 for kind in KINDS)
            print(f"{name:27}{figures}   {ratios[name]:10.2f}", flush=True)
    least = min(value for name, value in ratios.items() if name.endswith("x 1"))
    print(json.dumps({"ratio": least, "ratios": ratios, "set_mb": arguments.set_mb, **machine()}))


KINDS = ("ours bf16", "ours fp32", "torch bf16", "torch fp32")


def shape(out: int, inputs: int, set_bytes: float, rounds: int) -> dict[str, dict[str, float]]:
    """GFLOP/s by case and kind for matrices of one shape."""
    weights = {
        "ours": packed_set(out, inputs, set_bytes),
        "torch bf16": plain_set(out, inputs, torch.bfloat16, set_bytes),
        "torch fp32": plain_set(out, inputs, torch.float32, set_bytes),
    }
    table = {}
    for rows in ROWS:
        flops = 2 * rows * out * inputs
        table[f"{out}x{inputs} x {rows}"] = speeds(cases(weights, torch.randn(rows, inputs)), flops, rounds)
    table[f"{out}x{inputs} x {TOKENS}, mixture"] = mixture(out, inputs, weights["torch bf16"], rounds)
    return table


def cases(weights: dict[str, list], x: Tensor) -> dict[str, tuple[Callable[[], None], int]]:
    """What to time, each with the number of products of one call."""

    def through(kind: str, multiply: Callable, rows: Tensor) -> tuple[Callable[[], None], int]:
        def case() -> None:
            for weight in weights[kind]:
                multiply(rows, weight)

        return case, len(weights[kind])

    return {
        "ours bf16": through("ours", matmul, x.bfloat16()),
        "ours fp32": through("ours", matmul, x),
        "torch bf16": through("torch bf16", linear, x.bfloat16()),
        "torch fp32": through("torch fp32", linear, x),
    }


def mixture(out: int, inputs: int, dense: list[Tensor], rounds: int) -> dict[str, float]:
    """The experts' product of 16 tokens, beside torch's dense product of 16 rows (per FLOP of either)."""
    experts = torch.rand(TOKENS, EXPERTS).topk(CHOSEN).indices.flatten()
    offsets = torch.cat((torch.zeros(1, dtype=torch.int64), torch.bincount(experts, minlength=EXPERTS).cumsum(0)))
    bank = packed_matrices(EXPERTS, out, inputs)
    rows, x = torch.randn(TOKENS * CHOSEN, inputs), torch.randn(TOKENS, inputs).bfloat16()
    wide = {name: rows.to(dtype) for name, dtype in (("ours bf16", torch.bfloat16), ("ours fp32", torch.float32))}
    seconds = interleaved(
        {
            **{name: lambda r=r: grouped_matmul(r, bank, offsets) for name, r in wide.items()},
            "torch bf16": lambda: [linear(x, weight) for weight in dense],
        },
        rounds=rounds,
    )
    count = {"ours bf16": len(rows), "ours fp32": len(rows), "torch bf16": TOKENS * len(dense)}
    return {name: 2e-9 * count[name] * out * inputs / s for name, s in seconds.items()}


def speeds(made: dict[str, tuple[Callable[[], None], int]], flops: float, rounds: int) -> dict[str, float]:
    """GFLOP/s of each case."""
    seconds = interleaved({name: case for name, (case, _) in made.items()}, rounds=rounds)
    return {name: 1e-9 * flops * made[name][1] / s for name, s in seconds.items()}


def packed_matrices(count: int, out: int, inputs: int) -> PackedPanels:
    """Random codes under ordinary scales."""
    codes = torch.randint(0, 256, (count, out, inputs // 2), dtype=torch.uint8)
    return PackedPanels(codes, torch.randint(118, 124, (count, out, inputs // BLOCK), dtype=torch.uint8))


def packed_set(out: int, inputs: int, set_bytes: float) -> list[PackedPanels]:
    """Distinct matrices of `set_bytes` in all."""
    size = out * inputs // 2 + out * inputs // BLOCK
    return [packed_matrices(1, out, inputs) for _ in range(math.ceil(set_bytes / size))]


def plain_set(out: int, inputs: int, dtype: torch.dtype, set_bytes: float) -> list[Tensor]:
    """Distinct matrices of `set_bytes` in all."""
    return [torch.randn(out, inputs).to(dtype) for _ in range(math.ceil(set_bytes / (out * inputs * dtype.itemsize)))]


if __name__ == "__main__":
    with torch.no_grad():
        main()
