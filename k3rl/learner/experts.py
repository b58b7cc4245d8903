"""What happens to routed experts besides gradients: masters dithered at the start, value flips, router balancing.

Legend: M MoE layers, E experts, K experts per token, N positions.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
import torch.distributed as dist
from torch import Tensor

from k3rl.kernels.mxfp4 import fake_quantize
from k3rl.learner.dither import dither
from k3rl.model import Model
from k3rl.model.moe import Experts, LatentMoe

STACKS = ("w13", "w2")


@torch.no_grad()
def dither_masters(model: Model, seed: int) -> None:
    """Spread the masters that came from MXFP4 bytes over their rounding cells; the forward stays bit for bit."""
    generator = torch.Generator().manual_seed(seed)
    for experts in _experts(model):
        for name in [name for name in STACKS if name in experts.packed]:
            weight = getattr(experts, name)
            weight.copy_(dither(weight.cpu(), generator))
            del experts.packed[name]  # the masters have left the exact values that these bytes were kept for


class Flips:
    """Counts the expert values that an optimizer step really changed, as the forward sees them.

    Experts that never flip are not trained, whatever their gradients say: the alarm is on zero. `model` None: they are
    frozen, and there is nothing to count.
    """

    def __init__(self, model: Model | None) -> None:
        self._model = model
        self._values = self._read()

    def restart(self) -> None:
        """Count from the weights as they are (they were loaded)."""
        self._values = self._read()

    def count(self) -> dict[str, float]:
        """Metrics of the step since the last call: flips, their share of all values, and the alarm (1: none moved).
        Empty for experts that are not quantized."""
        if self._model is None or not self._model.qat:
            return {}
        fresh = self._read()
        flipped = sum(int((a != b).sum()) for a, b in zip(self._values, fresh, strict=True))
        self._values = fresh
        return {
            "experts/flips": float(flipped),
            "experts/flip_share": flipped / sum(value.numel() for value in fresh),
            "experts/alarm_still": float(flipped == 0),
        }

    @torch.no_grad()
    def _read(self) -> list[Tensor]:
        if self._model is None or not self._model.qat:
            return []
        return [fake_quantize(getattr(experts, name)) for experts in _experts(self._model) for name in STACKS]


def count_loads(chosen_NMK: Tensor, experts: int) -> Tensor:
    """How often each expert was chosen, float64 [M, E], of expert ids int64 [N, M, K]."""
    layers = chosen_NMK.shape[1]
    offsets = torch.arange(layers, device=chosen_NMK.device)[:, None] * experts
    flat = (chosen_NMK + offsets).flatten()
    return torch.bincount(flat, minlength=layers * experts).view(layers, experts).to(torch.float64)


@torch.no_grad()
def balance(model: Model, loads_ME: Tensor, rate: float) -> dict[str, float]:
    """Move each router's bias by +-rate towards equal loads (arXiv 2408.15664); loads are summed over ranks first.

    Returns `experts/imbalance`: the busiest expert's load over the mean, largest over layers.
    """
    if dist.get_world_size() > 1:
        dist.all_reduce(loads_ME)
    mean_M1 = loads_ME.mean(dim=1, keepdim=True)
    routers = [module for module in model.modules() if isinstance(module, LatentMoe)]
    for router, direction in zip(routers, torch.sign(mean_M1 - loads_ME), strict=True):
        router.bias += rate * direction.to(router.bias.dtype)
    return {"experts/imbalance": float((loads_ME / mean_M1).max())}


def _experts(model: Model) -> Iterator[Experts]:
    return (module for module in model.modules() if isinstance(module, Experts))
