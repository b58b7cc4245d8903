"""What the benchmarks share: peers timed in turn in one run, and what they were measured on."""

from __future__ import annotations

import platform
import statistics
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch


def interleaved(cases: Mapping[str, Callable[[], Any]], *, rounds: int) -> dict[str, float]:
    """Median seconds of each case over `rounds` rounds that run every case once, after one round that is not counted.

    Cases take turns, so that what slows the machine for a while slows them all.
    """
    seconds: dict[str, list[float]] = {name: [] for name in cases}
    for counted in (False, *[True] * rounds):
        for name, case in cases.items():
            start = time.perf_counter()
            case()
            if counted:
                seconds[name].append(time.perf_counter() - start)
    return {name: statistics.median(times) for name, times in seconds.items()}


def machine() -> dict[str, Any]:
    """The processor, its threads in use, and torch's version."""
    name = platform.processor() or platform.machine()
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.is_file():
        models = [line.partition(":")[2].strip() for line in cpuinfo.read_text().splitlines() if "model name" in line]
        name = models[0] if models else name
    return {
        "processor": name,
        "instructions": torch.backends.cpu.get_cpu_capability(),
        "threads": torch.get_num_threads(),
        "torch": torch.__version__,
    }
