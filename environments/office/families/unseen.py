"""Held-out families: the trained tools and names in tasks no training split has, swap two cells and clear cells."""

from __future__ import annotations

from k3rl.environments.office.formula import Value
from k3rl.environments.office.plan import Plan, bare, sheets
from k3rl.environments.office.tables import Draw, Table


def _tables(draw: Draw, level: int) -> list[Table]:
    kinds, rows = {1: ("??", 3), 2: ("??", 3), 3: ("?", 3), 4: ("???", 4), 5: ("??", 3)}[level]
    return [draw.table(kinds, rows + draw.pick(2)) for _ in range(2 if level == 5 else 1)]


def swap(draw: Draw, level: int) -> Plan:
    """Exchange what two cells hold: in one row, in one column, by name, or across sheets."""
    tables = _tables(draw, level)
    left, right = tables[0], tables[-1]
    column = draw.pick(len(left.heads), 1)
    first, second = draw.two(min(len(left.names), len(right.names)))
    pairs = [(left.at(first, column), right.at(second, column))]
    held = {left.at(first, column): left.value(first, column), right.at(second, column): right.value(second, column)}
    if level == 2:
        side = 3 - column
        pairs.append((left.at(first, side), left.at(second, side)))
        held |= {left.at(row, side): left.value(row, side) for row in (first, second)}
    goal: dict[str, Value] = {}
    for a, b in pairs:
        goal |= {a: held[b], b: held[a]}
    names: dict[str, Value] = {
        "c": bare(pairs[0][0]), "d": bare(pairs[0][1]), "s": left.sheet, "t": right.sheet, "col": left.heads[column],
        "to_col": right.heads[column], "row": left.names[first], "to_row": right.names[second],
    }  # fmt: skip
    if level == 1:
        prompt = draw.say("Swap the values of {c} and {d}.", **names)
    elif level == 2:
        prompt = draw.say(
            "Swap the values of {c} and {d}, and those of {e} and {f}.",
            e=bare(pairs[1][0]),
            f=bare(pairs[1][1]),
            **names,
        )
    elif level == 5:
        prompt = draw.say("Swap the {col} of {row} in sheet {s} and the {to_col} of {to_row} in sheet {t}.", **names)
    else:
        prompt = draw.say("In sheet {s}, swap the {col} of {row} and that of {to_row}.", **names)
    reads = tuple(t.sheet for t in tables) if level >= 3 else tuple(bare(where) for where in goal)
    return Plan(prompt=prompt, sheets=sheets(*tables), reads=reads, literals=goal)


def clear(draw: Draw, level: int) -> Plan:
    """Empty cells."""
    tables = _tables(draw, level)
    spots = []
    for table in tables:
        rows = draw.two(len(table.names)) if level == 2 else (draw.pick(len(table.names)),)
        spots += [(table, row, draw.pick(len(table.heads), 1)) for row in rows]
    goal: dict[str, Value] = {table.at(row, column): "" for table, row, column in spots}
    if level <= 2:
        prompt = draw.say("Clear {c}.", "Make {c} empty.", c=" and ".join(bare(where) for where in goal))
    else:
        prompt = " ".join(
            draw.say("In sheet {s}, clear the {col} of {row}.", s=t.sheet, col=t.heads[column], row=t.names[row])
            for t, row, column in spots
        )
    reads = tuple(t.sheet for t in tables) if level >= 3 else ()
    return Plan(prompt=prompt, sheets=sheets(*tables), reads=reads, literals=goal)
