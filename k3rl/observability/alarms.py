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


MEAN_BAR, P99_BAR = 5e-5, 5e-4  # nats: two orders of summation in fp32 stay below, one step's other weights do not


def tell_mismatch(metrics: Mapping[str, Any], where: str) -> None:
    """Warns at every step in which the policy that sampled was not the one the learner computes; `metrics` without
    `mismatch/n` measured nothing."""
    if not metrics.get("mismatch/n"):
        return
    mean, p99 = metrics["mismatch/mean"], metrics["mismatch/p99"]
    if not (mean < MEAN_BAR and p99 < P99_BAR):
        log.warning(
            "%s: |log p_rollout - log p_learner| has mean %.2g (bar %g) and p99 %.2g (bar %g) over %d tokens: engine "
            "and learner do not compute the same policy (metrics: mismatch/*)",
            where,
            mean,
            MEAN_BAR,
            p99,
            P99_BAR,
            metrics["mismatch/n"],
        )
