"""Tables for the terminal, drawn from a summary: by domain with intervals, then by level, family and tier."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

MEASURE_TITLES = {"sampled": "sampled", "greedy": "greedy", "pass8": "pass@8"}


def show(summary: Mapping[str, Any], console: Console | None = None, *, details: bool = True) -> None:
    """Print the tables of a summary or a comparison (report.py); `details` adds those by level, family and tier."""
    from rich.console import Console

    console = console or Console()
    for table in tables(summary, details=details):
        console.print(table, "")


def tables(summary: Mapping[str, Any], *, details: bool = True) -> Iterator[Table]:
    """The tables one by one: test families, held-out families, then the details of the test families."""
    yield domain_table(summary, "Success on unseen tasks, % (95% interval)")
    if summary.get("heldout"):
        yield domain_table(summary["heldout"], "Families never trained on, % (95% interval)")
    if details:
        for part, title in (("levels", "level"), ("families", "family"), ("tiers", "tier")):
            yield detail_table(summary["domains"], part, title)


def domain_table(comparison: Mapping[str, Any], title: str) -> Table:
    """Before, after and the paired gain by domain and on average, one line per measure."""
    table = _table(title, "", "", ">before", ">after", ">gain, points")
    for name, domain in [*comparison["domains"].items(), ("average", comparison["average"])]:
        tasks = next((f"[dim]{value['n']} tasks[/]" for value in domain["gain"].values() if value), "")
        labels = (f"[bold]{name}[/]", tasks, "")
        for label, (measure, measure_title) in zip(labels, MEASURE_TITLES.items(), strict=True):
            before, after, gain = (domain[side][measure] for side in ("before", "after", "gain"))
            table.add_row(label, measure_title, _interval(before), _interval(after), _gain(gain))
        table.add_section()
    return table


def detail_table(domains: Mapping[str, Any], part: str, title: str) -> Table:
    """Success before and after by one property of a task (`part`: levels, families or tiers), and what was used after:
    sampled tokens and turns per episode; by tier, thinking tokens, malformed turns and successes per 1,000 tokens too.
    """
    usage = {"tokens": "tokens", "turns": "turns"}
    measures = dict(MEASURE_TITLES)
    if part == "tiers":
        usage |= {"thinking": "thinking", "malformed": "malformed", "success_per_1000_tokens": "per 1k"}
        del measures["pass8"]
    columns = [*measures.values(), *usage.values()]
    table = _table(f"By {title}, before → after, %", "", title, *(f">{text}" for text in columns))
    for name, domain in domains.items():
        for number, (key, sides) in enumerate(domain[part].items()):
            after = sides["after"] or sides["before"]
            table.add_row(
                f"[bold]{name}[/]" if number == 0 else "",
                key,
                *(_change(sides, measure) for measure in measures),
                *(_used(after["usage"], key) for key in usage),
            )
        table.add_section()
    return table


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


def _change(sides: Mapping[str, Any], measure: str) -> str:
    values = [sides[side][measure] if sides[side] else None for side in ("before", "after")]
    return " → ".join("-" if value is None else f"{100 * value['mean']:.0f}" for value in values)


def _used(usage: Mapping[str, float], key: str) -> str:
    if key == "malformed":
        return f"{100 * usage[key]:.1f}%"
    return f"{usage[key]:.0f}" if key in ("tokens", "thinking") else f"{usage[key]:.1f}"
