"""What a run's metrics say that nobody should have to look for."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

log = logging.getLogger(__name__)


FULL = 0.1  # share of the learning rate from which a step should move something: schedules start and end near 0


class StillExperts:
    """Warns once, at the first optimizer step that changed no value of the routed experts as the forward sees them."""

    def __init__(self, learning_rate: float) -> None:
        self._least, self._told = FULL * learning_rate, False

    def look(self, metrics: Mapping[str, Any], where: str) -> None:
        """`metrics` of one step; those of a step without a signal, in which nothing moves, have no such alarm."""
        if self._told or not metrics.get("experts/alarm_still") or metrics["lr"] < self._least:
            return
        self._told = True
        log.warning(
            "%s: not one MXFP4 value of the routed experts changed: they are not trained. Raise the learning rate or "
            "learner.expert_rate, or set learner.dither=true (metrics: experts/flips)",
            where,
        )
