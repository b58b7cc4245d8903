"""What finished runs gained, beside each other, as Markdown: `python tests/benchmarks/gains.py runs/A runs/B ...`.

For each run folder with a summary.json: success before and after on unseen tasks, the gain paired by task with its 95%
interval, by domain and for held-out families apart; minutes in all; how long and well-formed episodes are; the mismatch
of learner and rollout.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from omegaconf import OmegaConf

from k3rl.errors import UserError
from k3rl.evaluation.tables import MEASURE_TITLES


def main() -> None:
    """Read, and print the tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("runs", nargs="+", type=Path)
    try:
        runs = {str(folder): read(folder) for folder in parser.parse_args().runs}
    except UserError as error:
        parser.error(str(error))
    heldout = {name: {**run, **run["heldout"]} for name, run in runs.items() if run["heldout"]}
    for title, rows in (
        ("Unseen tasks, average of the domains", [average_row(*run) for run in runs.items()]),
        ("By domain", [row for name, run in runs.items() for row in domain_rows(name, run)]),
        ("Held-out families, average of the domains", [average_row(name, run) for name, run in heldout.items()]),
        ("Held-out families by domain", [row for name, run in heldout.items() for row in domain_rows(name, run)]),
        (
            "What episodes are like, before to after",
            [row for name, run in runs.items() for row in usage_rows(name, run)],
        ),
        ("Learner against rollout, |difference of log-probabilities|", [mismatch_row(*run) for run in runs.items()]),
    ):
        if rows:
            print(f"\n{title}\n\n{markdown(rows)}")


def read(folder: Path) -> Mapping[str, Any]:
    """A run's summary, with its objective."""
    try:
        summary = json.loads((folder / "summary.json").read_text())
        config = OmegaConf.load(folder / "config.yaml")
    except OSError as error:
        raise UserError(f"{folder} is no finished run: {error.strerror}: {error.filename}") from error
    if "gain" not in summary["average"]:
        raise UserError(f"{folder} has one evaluation, not one before and one after training")
    return {**summary, "objective": config.algorithm.objective}


def average_row(name: str, run: Mapping[str, Any]) -> dict[str, str]:
    """One run in one line."""
    average = run["average"]
    return {
        "run": name,
        "objective": run["objective"],
        "seed": str(run["seed"]),
        "steps": str(run["steps"]),
        "minutes": f"{run['seconds'] / 60:.1f}",
        **dict(moves(average["before"], average["after"], average["gain"])),
    }


def domain_rows(name: str, run: Mapping[str, Any]) -> Iterator[dict[str, str]]:
    """A line for every domain."""
    for domain, part in run["domains"].items():
        yield {"run": name, "domain": domain, **dict(moves(part["before"], part["after"], part["gain"]))}


def usage_rows(name: str, run: Mapping[str, Any]) -> Iterator[dict[str, str]]:
    """Tokens and turns of an episode, and the share of its turns that could not be read."""
    for domain, part in run["domains"].items():
        before, after = part["before"]["usage"], part["after"]["usage"]
        lengths = {key: f"{before[key]:.1f} to {after[key]:.1f}" for key in ("tokens", "turns")}
        malformed = f"{100 * before['malformed']:.1f}% to {100 * after['malformed']:.1f}%"
        yield {"run": name, "domain": domain, **lengths, "malformed turns": malformed}


def mismatch_row(name: str, run: Mapping[str, Any]) -> dict[str, str]:
    """Agreement over the whole run."""
    found = run["mismatch"]
    figures = {key: f"{found[key]:.1e}" for key in ("mean", "p99", "max")}
    others = {key: f"{run[key]:.1e}" for key in ("routes_differ", "selections_differ")}
    return {"run": name, **figures, "n": f"{found['n']:.0f}", **others}


def moves(before: Mapping[str, Any], after: Mapping[str, Any], gain: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """By measure: before, after, paired gain and its interval, in percent."""
    for measure, title in MEASURE_TITLES.items():
        if gain[measure] is None:  # fewer samples than the measure needs
            yield title, "-"
            continue
        sides = (100 * side[measure]["mean"] for side in (before, after))
        mean, low, high = (100 * gain[measure][key] for key in ("mean", "low", "high"))
        yield title, "{:.1f} to {:.1f}".format(*sides) + f", {mean:+.1f} ({low:.1f} to {high:.1f})"


def markdown(rows: list[dict[str, str]]) -> str:
    """A table with the keys of the first row as its head."""
    head = list(rows[0])
    lines = [head, ["---"] * len(head), *([row[key] for key in head] for row in rows)]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


if __name__ == "__main__":
    main()
