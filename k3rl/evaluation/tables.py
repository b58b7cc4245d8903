"""Tables for the terminal, drawn from a report: by domain with intervals, then by level, family and tier."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

MEASURE_TITLES = {"sampled": "sampled", "greedy": "greedy", "pass8": "pass@8"}


def show(report: Mapping[str, Any], console: Console | None = None, *, details: bool = True) -> None:
    """Print the tables of a summary, a comparison or one evaluation (report.py), and of a summary how far engine and
    learner were apart; `details` adds the breakdowns."""
    from rich.console import Console

    console = console or Console()
    for table in tables(report, details=details):
        console.print(table, "")
    if "mismatch" in report:
        console.print(mismatch_line(report), highlight=False, soft_wrap=True)


def tables(report: Mapping[str, Any], *, details: bool = True) -> Iterator[Table]:
    """The tables one by one: test families, held-out families, then the test families by level, family and tier."""
    yield domain_table(report, "Unseen tasks, % (95% interval)")
    if report.get("heldout"):
        yield domain_table(report["heldout"], "Unseen families, % (95% interval)")
    if details:
        for part, title in (("levels", "level"), ("families", "family"), ("tiers", "tier")):
            yield detail_table(report, part, title)


def domain_table(report: Mapping[str, Any], title: str) -> Table:
    """By domain and on average, one line per measure: before, after and the paired gain, or the one evaluation."""
    two = _compares(report)
    table = _table(title, "", "", *((">before", ">after", ">gain, points") if two else (">success",)))
    for name, domain in [*report["domains"].items(), ("average", report["average"])]:
        counted = domain["gain"] if two else domain
        tasks = next((f"[dim]{counted[m]['n']} tasks[/]" for m in MEASURE_TITLES if counted[m]), "")
        labels = (f"[bold]{name}[/]", tasks, "")
        for label, (measure, measure_title) in zip(labels, MEASURE_TITLES.items(), strict=True):
            sides = [domain[side][measure] for side in ("before", "after")] if two else [domain[measure]]
            gain = [_gain(domain["gain"][measure])] if two else []
            table.add_row(label, measure_title, *map(_interval, sides), *gain)
        table.add_section()
    return table


def detail_table(report: Mapping[str, Any], part: str, title: str) -> Table:
    """Success by one property of a task (`part`: levels, families or tiers), and what was used (after, of two):
    sampled tokens and turns per episode; by tier, thinking tokens, malformed turns and successes per 1,000 tokens too.
    """
    two = _compares(report)
    usage = {"tokens": "tokens", "turns": "turns"}
    measures = dict(MEASURE_TITLES)
    if part == "tiers":
        usage |= {"thinking": "thinking", "malformed": "malformed", "success_per_1000_tokens": "per 1k"}
        del measures["pass8"]
    columns = [*measures.values(), *usage.values()]
    table = _table(f"By {title}{', before → after' if two else ''}, %", "", title, *(f">{text}" for text in columns))
    for name, domain in report["domains"].items():
        for number, (key, entry) in enumerate(domain[part].items()):
            sides = [entry["before"], entry["after"]] if two else [entry]
            used = next(side for side in reversed(sides) if side)["usage"]
            table.add_row(
                f"[bold]{name}[/]" if number == 0 else "",
                key,
                *(" → ".join(_mean(side and side[measure]) for side in sides) for measure in measures),
                *(_used(used, key) for key in usage),
            )
        table.add_section()
    return table


def mismatch_line(report: Mapping[str, Any]) -> str:
    """|log p_rollout - log p_learner| over the run, and the shares of choices the learner would make otherwise."""
    apart = report["mismatch"]
    shares = [
        f", {kind} differ {100 * report[f'{kind}_differ']:.2g}%"
        for kind in ("routes", "selections")
        if f"{kind}_differ" in report
    ]
    sizes = ", ".join(f"{name} {apart[name]:.2g}" for name in ("mean", "p99", "max"))
    return f"Mismatch of engine and learner: {sizes}, n {apart['n']:.0f}{''.join(shares)}"


def _compares(report: Mapping[str, Any]) -> bool:
    return "gain" in report["average"]


def _table(title: str, *columns: str) -> Table:
    """A plain table; a column title that starts with `>` is set flush right."""
    from rich import box
    from rich.table import Table

    table = Table(
        title=title,
        box=box.SIMPLE_HEAD,
        title_justify="left",
        title_style="bold",
        pad_edge=False,
        show_edge=False,
        padding=(0, 1, 0, 0),
    )
    for column in columns:
        table.add_column(column.removeprefix(">"), justify="right" if column.startswith(">") else "left", no_wrap=True)
    return table


def _interval(value: Mapping[str, float] | None) -> str:
    if value is None:
        return "-"
    return f"{100 * value['mean']:.1f} [dim]({100 * value['low']:.1f}–{100 * value['high']:.1f})[/]"


def _gain(value: Mapping[str, float] | None) -> str:
    if value is None:
        return "-"
    colour = "green" if value["low"] > 0 else "red" if value["high"] < 0 else "default"
    interval = f"{100 * value['low']:.1f} to {100 * value['high']:.1f}"
    return f"[{colour}]{100 * value['mean']:+.1f}[/] [dim]({interval})[/]"


def _mean(value: Mapping[str, float] | None) -> str:
    return "-" if value is None else f"{100 * value['mean']:.0f}"


def _used(usage: Mapping[str, float], key: str) -> str:
    if key == "malformed":
        return f"{100 * usage[key]:.1f}%"
    return f"{usage[key]:.0f}" if key in ("tokens", "thinking") else f"{usage[key]:.1f}"
