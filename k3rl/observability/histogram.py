"""Histograms of positive sizes with log-spaced bins: small enough for a metrics file, and those of many steps add up.

`{"-82": 5, "-81": 2}`: 5 values in (10^(-83/20), 10^(-82/20)], 2 in the next bin; 20 bins to a factor of ten, so a
quantile is known to 12%. Keys are text, as in JSON. Zero, and what is below 10^-12, is in bin -240.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

PER_DECADE = 20
LOWEST = -240

Histogram: TypeAlias = Mapping[str, int]
"""Count by bin, empty bins left out."""


def histogram(sizes: NDArray[np.float64]) -> dict[str, int]:
    """Counts of non-negative `sizes` [N]."""
    bins = np.ceil(np.log10(np.maximum(sizes, 10.0 ** (LOWEST / PER_DECADE))) * PER_DECADE).astype(int)
    numbers, counts = np.unique(bins, return_counts=True)
    return {str(number): int(count) for number, count in zip(numbers, counts, strict=True)}


def merged(histograms: Iterable[Histogram]) -> dict[str, int]:
    """The histogram of all their values together."""
    total: Counter[str] = Counter()
    for one in histograms:
        total.update(one)
    return dict(total)


def quantile(counts: Histogram, share: float) -> float:
    """The upper end of the bin in which the smallest value lies that `share` of all do not exceed; 0 of no values."""
    wanted = math.ceil(share * sum(counts.values()))
    seen = 0
    for number in sorted(map(int, counts)):
        seen += counts[str(number)]
        if seen >= wanted:
            return 10.0 ** (number / PER_DECADE)
    return 0.0
