"""The decode step of a whole model in C++ for CPUs: what a laptop's rollouts run on."""

from k3rl.kernels.cpu.build import library
from k3rl.kernels.cpu.panels import Panels

__all__ = ["Panels", "library"]
