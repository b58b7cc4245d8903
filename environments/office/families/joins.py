"""The family join: fetch a value from another table by a lookup formula, whose inputs will change."""

from __future__ import annotations

from k3rl.environments.office.formula import Formula
from k3rl.environments.office.plan import Plan, bare, sheets
from k3rl.environments.office.sheet_jobs import cells
from k3rl.environments.office.tables import Draw, Table


def _block(table: Table, columns: int) -> str:
    """The data of the first `columns` columns, headers left out: "plum!A2:B4"."""
    return f"{table.at(0, 0)}:{cells.coordinate(len(table.names) + 1, columns)}"


def _same_names(draw: Draw, table: Table, names: list[str]) -> None:
    """Give the table's rows these names, shuffled."""
    for row, name in zip(table.rows[1:], draw.rng.sample(names, len(names)), strict=True):
        row[0] = name


def join(draw: Draw, level: int) -> Plan:
    """A lookup by name: cells given (1, 2), by name from another sheet (3), a farther column (4), two rows (5)."""
    if level <= 2:
        return _given_cells(draw, level)
    other = draw.table("n" if level == 3 else "nn", 3)
    target = draw.table("-" if level == 3 else "n-", 3)
    _same_names(draw, other, target.names)
    empty, column = len(target.heads) - 1, len(other.heads) - 1
    target.rows[0][empty] = other.heads[column]
    rows = draw.two(3) if level == 5 else (draw.pick(3),)
    goal = {
        target.at(row, empty): Formula(
            op="VLOOKUP", args=(target.at(row, 0), _block(other, column + 1)), column=column + 1
        )
        for row in rows
    }
    prompt = draw.say(
        "In sheet {s}, fill the {z} of {row} with a lookup formula on sheet {t}.",
        "In sheet {s}, the {z} of {row} needs a formula that looks it up in sheet {t}.",
        s=target.sheet, t=other.sheet, z=other.heads[column], row=" and ".join(target.names[row] for row in rows),
    )  # fmt: skip
    return Plan(prompt=prompt, sheets=sheets(target, other), reads=(target.sheet, other.sheet), formulas=goal)


def _given_cells(draw: Draw, level: int) -> Plan:
    """The key stands beside the table (level 1) or in a sheet of its own (level 2)."""
    other = draw.table("nn", 3)
    column = 1 if level == 1 else draw.pick(3, 1)
    if level == 1:
        other.rows[1] += [None, draw.rng.choice(other.names)]
        tables, key, where = (other,), other.at(0, 4), other.at(0, 5)
    else:
        target = draw.table("n", 3)
        _same_names(draw, target, other.names)
        row = draw.pick(3)
        tables, key, where = (target, other), target.at(row, 0), target.at(row, 2)
    block = _block(other, column + 1)
    names = {"c": bare(where), "k": bare(key), "n": column + 1, "s": tables[0].sheet}
    names["r"] = bare(block) if level == 1 else block
    sheet = "" if level == 1 else " of sheet {s}"
    prompt = draw.say(
        "In {c}" + sheet + ", put a formula that looks up {k} in {r}, column {n}.",
        "{c}" + sheet + " needs a lookup formula for {k} in {r}, column {n}.",
        **names,
    )
    formula = Formula(op="VLOOKUP", args=(key, block), column=column + 1)
    return Plan(prompt=prompt, sheets=sheets(*tables), formulas={where: formula})
