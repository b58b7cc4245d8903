"""Routed experts: choice, mixture over the chosen experts for training and for decoding."""

from k3rl.kernels.moe.grouped import grouped_experts
from k3rl.kernels.moe.reference import choose, dense_experts, looped_experts, route_weights

__all__ = [
    "choose",
    "dense_experts",
    "grouped_experts",
    "looped_experts",
    "route_weights",
]
