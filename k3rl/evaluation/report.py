"""Two evaluations of the same tasks, before and after, as plain values for summary.json.

Held-out families (split `test_heldout`) never enter the main figures: they stand under `heldout`, in the same form.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict
from typing import Any

from k3rl.evaluation.statistics import (
    MEASURES,
    SAMPLED,
    Estimate,
    Measure,
    TaskResult,
    average,
    estimate,
    group,
    has,
    paired,
)

HELDOUT = "test_heldout"
SIDES = ("before", "after")
DETAILS: Mapping[str, Callable[[TaskResult], Any]] = {
    "levels": lambda r: r.level,
    "families": lambda r: r.family,
    "tiers": lambda r: r.tier,
}
"""What every domain is broken down by."""

Block = dict[str, dict[str, float] | None]
"""`{"sampled": {"mean", "low", "high", "n"}, "greedy": ..., "pass8": ...}`; None where the evaluation lacks it."""


def summary(
    before: Iterable[TaskResult],
    after: Iterable[TaskResult],
    *,
    seconds: float,
    phases: Mapping[str, float],
    setup: float,
    mismatch: Mapping[str, Any],
    routes_differ: float,
    **more: Any,
) -> dict[str, Any]:
    """The whole of summary.json.

    `seconds` is the run, which downloads nothing, `phases` its parts by name; `setup` what downloads and installation
    before it took; `mismatch` is |log p_rollout - log
    p_learner| as {of, mean, p99, max, n}, `of` saying over which tokens; `routes_differ` the share of routes the
    learner would choose otherwise without replay; `more` is added as it stands.
    """
    missing = {"mean", "p99", "max", "n"} - set(mismatch)
    if missing:
        raise ValueError(f"mismatch lacks {', '.join(sorted(missing))}: it needs mean, p99, max and n")
    return {
        "seconds": seconds,
        "seconds_by_phase": dict(phases),
        "seconds_of_downloads": setup,
        **comparison(before, after),
        "mismatch": dict(mismatch),
        "routes_differ": routes_differ,
        **more,
    }


def comparison(before: Iterable[TaskResult], after: Iterable[TaskResult]) -> dict[str, Any]:
    """`domains`, `average` and `heldout` of two evaluations (two checkpoints, or a run's start and end)."""
    before, after = list(before), list(after)
    main = _compare(_split(before, heldout=False), _split(after, heldout=False))
    heldout_before, heldout_after = _split(before, heldout=True), _split(after, heldout=True)
    heldout = _compare(heldout_before, heldout_after) if heldout_before and heldout_after else {}
    return {"samples_per_task": max((len(r.sampled) for r in after), default=0), **main, "heldout": heldout}


def evaluation(results: Iterable[TaskResult]) -> dict[str, Any]:
    """One evaluation alone: `domains.<name>`, `average` and `heldout`, each measure where two have sides."""
    results = list(results)

    def part(chosen: list[TaskResult]) -> dict[str, Any]:
        return {
            "domains": {
                name: {
                    **_side(rs),
                    **{title: {str(k): _side(v) for k, v in group(rs, key).items()} for title, key in DETAILS.items()},
                }
                for name, rs in _domains(chosen).items()
            },
            "average": average_block(chosen),
        }

    main, heldout = _split(results, heldout=False), _split(results, heldout=True)
    samples = max((len(r.sampled) for r in results), default=0)
    return {"samples_per_task": samples, **part(main), "heldout": part(heldout) if heldout else {}}


def block(results: Sequence[TaskResult]) -> Block:
    """Every measure over these tasks."""
    return _block(lambda measure: estimate(results, measure) if has(results, measure) else None)


def average_block(results: Sequence[TaskResult]) -> Block:
    """Every measure, averaged over domains with the same weight; None where a domain lacks it."""
    domains = list(_domains(results).values())

    def over(measure: Measure) -> Estimate | None:
        if not domains or not all(has(rs, measure) for rs in domains):
            return None
        return average([estimate(rs, measure) for rs in domains])

    return _block(over)


def gain_block(before: Sequence[TaskResult], after: Sequence[TaskResult]) -> Block:
    """Every measure's paired difference by task, averaged over domains with the same weight."""
    first, second = _domains(before), _domains(after)

    def over(measure: Measure) -> Estimate | None:
        if not first or not all(has(first[d], measure) and has(second[d], measure) for d in first):
            return None
        return average([paired(first[d], second[d], measure) for d in first])

    return _block(over)


def usage(results: Sequence[TaskResult]) -> dict[str, float]:
    """Means over tasks, per episode: tokens, turns, thinking tokens, share of malformed turns, and successes per
    1,000 sampled tokens."""
    n = max(len(results), 1)
    tokens = math.fsum(r.tokens for r in results) / n
    success = estimate(results, SAMPLED).mean if has(results, SAMPLED) else 0.0
    return {
        "tokens": tokens,
        "turns": math.fsum(r.turns for r in results) / n,
        "thinking": math.fsum(r.thinking for r in results) / n,
        "malformed": math.fsum(r.malformed for r in results) / n,
        "success_per_1000_tokens": 1000 * success / tokens if tokens else 0.0,
    }


def _compare(before: list[TaskResult], after: list[TaskResult]) -> dict[str, Any]:
    first, second = _domains(before), _domains(after)
    if set(first) != set(second):
        raise ValueError(
            f"the evaluations cover different domains ({', '.join(first)} and {', '.join(second)}): "
            "evaluate both on the same task list"
        )
    return {
        "domains": {name: _domain(first[name], second[name]) for name in first},
        "average": {
            "before": average_block(before),
            "after": average_block(after),
            "gain": gain_block(before, after),
        },
    }


def _domain(before: list[TaskResult], after: list[TaskResult]) -> dict[str, Any]:
    def by(key: Callable[[TaskResult], Any]) -> dict[str, Any]:
        first, second = group(before, key), group(after, key)
        return {
            str(name): {
                side: _side(rs[name]) if name in rs else None for side, rs in zip(SIDES, (first, second), strict=True)
            }
            for name in sorted({*first, *second})
        }

    return {
        "before": _side(before),
        "after": _side(after),
        "gain": gain_block(before, after),
        **{title: by(key) for title, key in DETAILS.items()},
    }


def _side(results: list[TaskResult]) -> dict[str, Any]:
    return {**block(results), "usage": usage(results)}


def _block(of: Callable[[Measure], Estimate | None]) -> Block:
    found = {measure.name: of(measure) for measure in MEASURES}
    return {name: asdict(value) if value is not None else None for name, value in found.items()}


def _domains(results: Iterable[TaskResult]) -> dict[str, list[TaskResult]]:
    return group(results, lambda r: r.domain)


def _split(results: list[TaskResult], *, heldout: bool) -> list[TaskResult]:
    return [r for r in results if (r.split == HELDOUT) is heldout]
