"""C++ for CPUs: the decode step of a whole model, what a laptop's rollouts run on, and MXFP4 products of their own."""

from k3rl.kernels.cpu.build import library
from k3rl.kernels.cpu.packed import PackedPanels
from k3rl.kernels.cpu.panels import Panels

__all__ = ["PackedPanels", "Panels", "library"]
