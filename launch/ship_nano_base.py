#!/usr/bin/env python3
"""Ships the model of a finished `k3rl sft experiment=nano_base` as k3rl/assets/nano_base, with its curves and README.

    .venv/bin/python launch/ship_nano_base.py runs/nano_base

Every figure of the README is read from the run folder.
"""

from __future__ import annotations

import argparse
import csv
import hashlib
import json
import shutil
from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby
from pathlib import Path
from statistics import mean
from typing import Any

from omegaconf import OmegaConf

ASSET = Path(__file__).resolve().parents[1] / "k3rl" / "assets" / "nano_base"
WINDOW = 50  # steps that a row of the curves averages

README = """# nano_base

The `nano` preset (1.1M parameters, Kimi-K3's blocks) trained from random weights on bare copying, the chat format, and
solutions of the training splits of {domains}, of which those of the last stages often stop
before the work is done, as collected data does (docs/log.md says why). No reinforcement learning.

| | |
|---|---|
| command | `k3rl sft experiment=nano_base` |
| seed | {seed} |
| data | {demonstrations:,} solver episodes ({each:,} per domain), played by the command itself |
| training | {tokens:.1f}M tokens in {minutes:.0f} minutes on two CPU cores; playing the episodes comes before it |
| model.safetensors | sha256 {digest} |
| curves | [curves.csv](curves.csv): means over {window} steps, stage by stage |

On unseen tasks of the training families, {tasks} per domain over all five levels, {samples} samples each:

    k3rl eval evaluation.tasks={tasks} evaluation.samples={samples}

{test}

On families that no stage has seen:

{heldout}
"""


def main() -> None:
    """Copy the model, write curves.csv and README.md."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("run", type=Path)
    run = parser.parse_args().run
    if not (run / "summary.json").exists():
        parser.error(f"{run} is no finished run: it has no summary.json")
    metrics = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    for file in (run / "model").iterdir():
        shutil.copyfile(file, ASSET / file.name)
    with (ASSET / "curves.csv").open("w", newline="") as handle:
        writer = csv.writer(handle, lineterminator="\n")
        writer.writerows(curve_rows(metrics))
    (ASSET / "README.md").write_text(readme(run, metrics))


def curve_rows(metrics: Sequence[Mapping[str, Any]]) -> Iterator[Sequence[object]]:
    """A head and one row per window; tokens and seconds count from the start."""
    domains = sorted({key.split("/")[1] for line in metrics for key in line if key.endswith("/entropy")})
    domains = [name for name in domains if name not in {"copy", "format"}]
    yield ["step", "stage", "tokens", "seconds", "loss", *(f"entropy_{name}" for name in domains)]
    tokens = seconds = 0.0
    for stage, lines in groupby(metrics, key=lambda line: line["stage"]):
        steps = list(lines)
        for start in range(0, len(steps), WINDOW):
            window = steps[start : start + WINDOW]
            tokens += sum(line["tokens"] for line in window)
            seconds += sum(line["time/step"] for line in window)
            entropies = [[x[key] for x in window if key in x] for key in (f"domain/{d}/entropy" for d in domains)]
            means = [f"{mean(values):.4f}" if values else "" for values in entropies]
            loss = mean(line["loss"] for line in window)
            yield [window[-1]["step"], stage, round(tokens), round(seconds), f"{loss:.4f}", *means]


def readme(run: Path, metrics: Sequence[Mapping[str, Any]]) -> str:
    """The asset's README with the figures of this run."""
    config: Any = OmegaConf.load(run / "config.yaml")
    summary = json.loads((run / "summary.json").read_text())
    names = [f"`{name}`" for name in sorted(config.environment)]
    each = config.sft.demonstrations
    return README.format(
        domains=f"{', '.join(names[:-1])} and {names[-1]}",
        seed=config.seed,
        demonstrations=each * len(names),
        each=each,
        tokens=sum(line["tokens"] for line in metrics) / 1e6,
        minutes=sum(line["time/step"] for line in metrics) / 60,
        digest=hashlib.sha256((run / "model" / "model.safetensors").read_bytes()).hexdigest(),
        window=WINDOW,
        tasks=next(iter(summary["domains"].values()))["sampled"]["n"],
        samples=summary["samples_per_task"],
        test=success(summary),
        heldout=success(summary["heldout"]),
    )


def success(report: Mapping[str, Any]) -> str:
    """A Markdown table by domain."""
    head = ("%", "sampled", "greedy", "pass@8", "lowest family, sampled", "malformed turns")
    lines = [f"| {' | '.join(head)} |", "|---" * len(head) + "|"]
    for name, domain in report["domains"].items():
        cells = [domain[measure]["mean"] for measure in ("sampled", "greedy", "pass8")]
        lowest, found = min(domain["families"].items(), key=lambda item: item[1]["sampled"]["mean"])
        *shown, malformed = (f"{100 * value:.1f}" for value in (*cells, domain["usage"]["malformed"]))
        family = f"{100 * found['sampled']['mean']:.1f} ({lowest})"
        lines.append(f"| {' | '.join([name, *shown, family, malformed])} |")
    return "\n".join(lines)


if __name__ == "__main__":
    main()
