"""The picture of a run: success by domain before and after, and its course over the steps, by domain."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from matplotlib.axes import Axes

# Okabe and Ito's colours, told apart by colour-blind readers; each domain keeps its colour and marker in every panel.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
MARKERS = ("o", "s", "^", "D", "v", "P", "X")
PANELS = (("sampled", "Sampled success"), ("greedy", "Greedy success"), ("pass8", "pass@8"))

Curve = Sequence[tuple[int, float]]
"""(step, value) in order of steps."""


def curves(metrics: Iterable[Mapping[str, Any]], prefix: str) -> dict[str, Curve]:
    """Series by the rest of the name from a metrics log: prefix `success/` turns `success/office` into `office`."""
    found: dict[str, list[tuple[int, float]]] = {}
    for record in metrics:
        for name, value in record.items():
            if name.startswith(prefix) and "/" not in name[len(prefix) :] and value is not None:
                found.setdefault(name[len(prefix) :], []).append((int(record["step"]), float(value)))
    return dict(sorted(found.items()))


def draw(path: Path, comparison: Mapping[str, Any], training: Mapping[str, Curve], *, title: str) -> None:
    """Write a PNG, 1500 pixels wide.

    Upper row: each measure by domain before and after, with its 95% interval. Below, if there was any training: its
    success over steps, thin as measured and thick as a running mean. `comparison` is a summary or comparison of
    report.py.
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(10, 6.8 if training else 3.6), dpi=150, layout="constrained")
    FigureCanvasAgg(figure)
    figure.suptitle(title, fontsize=13, fontweight="bold", x=0.01, ha="left")
    grid = figure.add_gridspec(2 if training else 1, len(PANELS))
    names = [*comparison["domains"], "average"]
    for column, (measure, text) in enumerate(PANELS):
        axes = figure.add_subplot(grid[0, column])
        _before_after(axes, comparison, names, measure, text)
        axes.tick_params(labelleft=column == 0)
    if training:
        _training(figure.add_subplot(grid[1, :]), training, list(comparison["domains"]))
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(path.name + ".part")
    figure.savefig(part, format="png")
    part.replace(path)


def _before_after(axes: Axes, comparison: Mapping[str, Any], names: Sequence[str], measure: str, text: str) -> None:
    for row, name in enumerate(names):
        sides = comparison["average"] if name == "average" else comparison["domains"][name]
        colour, marker = _look(row, name)
        before, after = sides["before"][measure], sides["after"][measure]
        for value, shift, face in ((before, -0.17, "white"), (after, 0.17, colour)):
            if value is not None:
                _point(axes, row + shift, value, colour, marker, face)
        if sides["gain"][measure] is not None and after is not None:
            label = f"{100 * sides['gain'][measure]['mean']:+.0f}"
            axes.annotate(
                label,
                (100 * after["high"], row + 0.17),
                xytext=(5, 0),
                textcoords="offset points",
                va="center",
                fontsize=8.5,
                color=colour,
            )
    axes.set_title(text, fontsize=10, loc="left")
    axes.set_yticks(range(len(names)), names)
    axes.set_ylim(len(names) - 0.5, -0.5)
    axes.set_xlim(0, 118)  # room for the gain of a point at 100
    axes.set_xticks(range(0, 101, 25))
    axes.set_xlabel("% of unseen tasks (open: before, filled: after)" if measure == "greedy" else "%", fontsize=9)
    axes.grid(axis="x", color="#dddddd", linewidth=0.8)
    if len(names) > 1:
        axes.axhline(len(names) - 1.5, color="#bbbbbb", linewidth=0.8)
    _plain(axes)


def _point(axes: Axes, y: float, value: Mapping[str, float], colour: str, marker: str, face: str) -> None:
    mean, low, high = (100 * value[key] for key in ("mean", "low", "high"))
    axes.plot((low, high), (y, y), color=colour, linewidth=1.6, solid_capstyle="butt", zorder=2)
    axes.plot(mean, y, marker=marker, color=colour, markerfacecolor=face, markersize=6.5, zorder=3, clip_on=False)


def _training(axes: Axes, training: Mapping[str, Curve], domains: Sequence[str]) -> None:
    from matplotlib.ticker import MaxNLocator

    order = [*domains, *(name for name in training if name not in domains)]
    ends: list[tuple[float, str, str]] = []
    last = 0
    for row, name in enumerate(order):
        curve = training.get(name, ())
        if not curve:
            continue
        colour, marker = _look(row, name)
        steps = np.array([step for step, _ in curve])
        values = 100 * np.array([value for _, value in curve])
        smooth = running_mean(values, max(1, len(values) // 12))
        axes.plot(steps, values, color=colour, linewidth=0.7, alpha=0.35)
        every = max(1, len(values) // 10)
        axes.plot(steps, smooth, color=colour, linewidth=2, marker=marker, markersize=5, markevery=every, label=name)
        ends.append((float(smooth[-1]), name, colour))
        last = max(last, int(steps[-1]))
    axes.set_title(
        "Training success by domain on the curriculum's levels (running mean; thin: each step)", fontsize=10, loc="left"
    )
    axes.set_xlabel("step", fontsize=9)
    axes.set_ylabel("% of episodes", fontsize=9)
    axes.set_ylim(0, 100)
    axes.grid(color="#e5e5e5", linewidth=0.8)
    _plain(axes)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.margins(x=0.01)
    for height, (_, name, colour) in zip(spread([end[0] for end in ends], 7.0), ends, strict=True):
        axes.annotate(
            name, (last, height), xytext=(8, 0), textcoords="offset points", va="center", fontsize=9, color=colour,
            annotation_clip=False,
        )  # fmt: skip


def running_mean(values: NDArray[np.float64], half: int) -> NDArray[np.float64]:
    """The mean over a centred window of 2 half + 1 values, shorter at the ends."""
    total = np.concatenate([[0.0], np.cumsum(values)])
    index = np.arange(len(values))
    low, high = np.maximum(index - half, 0), np.minimum(index + half + 1, len(values))
    return np.asarray((total[high] - total[low]) / (high - low))


def spread(heights: Sequence[float], gap: float) -> list[float]:
    """Label heights moved up just enough that no two are closer than `gap`, in the order given."""
    placed = [0.0] * len(heights)
    floor = -np.inf
    for index in sorted(range(len(heights)), key=lambda i: heights[i]):
        placed[index] = max(heights[index], floor)
        floor = placed[index] + gap
    return placed


def _look(row: int, name: str) -> tuple[str, str]:
    if name == "average":
        return "#333333", "o"
    return COLOURS[row % len(COLOURS)], MARKERS[row % len(MARKERS)]


def _plain(axes: Axes) -> None:
    axes.spines[["top", "right"]].set_visible(False)
    axes.tick_params(labelsize=9)
