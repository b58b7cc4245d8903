"""Families about what single cells hold: enter, replace, copy, lookup; swap and clear are never trained on.

Levels: 1 names the cell, 2 two cells or another sheet, 3 a row by its name, 4 row and column among distractors, 5 two
sheets.
"""

from __future__ import annotations

from k3rl.environments.office.formula import Value
from k3rl.environments.office.plan import Plan, bare, sheets
from k3rl.environments.office.tables import Draw, Table


def _shape(draw: Draw, level: int) -> Table:
    """One table as the level wants it: three columns, two, or four with more rows."""
    kinds, rows = {1: ("??", 3), 2: ("??", 3), 3: ("?", 3), 4: ("???", 4), 5: ("??", 3)}[level]
    return draw.table(kinds, rows + draw.pick(2))


def _place(draw: Draw, table: Table) -> tuple[int, int]:
    """Data row and column of one cell right of the names."""
    return draw.pick(len(table.names)), draw.pick(len(table.heads), 1)


def _named(table: Table, place: tuple[int, int]) -> dict[str, Value]:
    return {"row": table.names[place[0]], "col": table.heads[place[1]]}


def enter(draw: Draw, level: int) -> Plan:
    """Put a value into a cell."""
    tables = [_shape(draw, level) for _ in range(2 if level == 5 else 1)]
    if level == 2:
        columns = draw.two(3)
        places = [(tables[0], (draw.pick(len(tables[0].names)), column)) for column in columns]
    else:
        places = [(table, _place(draw, table)) for table in tables]
    goal = {table.at(*place): draw.value() for table, place in places}
    (first, new), *rest = goal.items()
    table, place = places[0]
    if level == 1:
        prompt = draw.say("Write {v} in {c}.", "Put {v} into cell {c}.", "Set {c} to {v}.", v=new, c=bare(first))
    elif level == 2:
        other, second = rest[0]
        prompt = draw.say(
            "Write {v} in {c} and {w} in {d}.", "Set {c} to {v} and {d} to {w}.",
            v=new, c=bare(first), w=second, d=bare(other),
        )  # fmt: skip
    elif level in (3, 4):
        prompt = draw.say(
            "In sheet {s}, set the {col} of {row} to {v}.", "Sheet {s}: the {col} of {row} becomes {v}.",
            s=table.sheet, v=new, **_named(table, place),
        )  # fmt: skip
    else:
        prompt = " ".join(
            draw.say("In sheet {s}, set the {col} of {row} to {v}.", s=t.sheet, v=goal[t.at(*p)], **_named(t, p))
            for t, p in places
        )
    reads = tuple(t.sheet for t in tables) if level >= 3 else ()
    return Plan(prompt=prompt, sheets=sheets(*tables), reads=reads, literals=goal)


def replace(draw: Draw, level: int) -> Plan:
    """Correct a wrong entry wherever it stands."""
    tables = [_shape(draw, level) for _ in range(2 if level == 5 else 1)]
    old, new = draw.word(), draw.word()
    count = 2 if level in (2, 4) else 1
    goal: dict[str, Value] = {}
    for table in tables:
        spots = [(r, c) for r in range(len(table.names)) for c in range(len(table.heads))]
        for row, column in sorted(draw.rng.sample(spots, count)):
            table.rows[row + 1][column] = old
            goal[table.at(row, column)] = new
    names = {"old": old, "new": new, "s": tables[0].sheet, "t": tables[-1].sheet}
    spots_named = [bare(where) for where in goal]
    if level == 1:
        prompt = draw.say(
            "{c} says {old}, it must say {new}.", "{old} in {c} is wrong, it is {new}.", c=spots_named[0], **names
        )
    elif level == 2:
        prompt = draw.say(
            "{c} and {d} say {old}, both must say {new}.", "{old} in {c} and {d} is wrong, it is {new}.",
            c=spots_named[0], d=spots_named[1], **names,
        )  # fmt: skip
    elif level == 5:
        prompt = draw.say("In the sheets {s} and {t}, replace every {old} by {new}.", **names)
    else:
        prompt = draw.say(
            "In sheet {s}, replace every {old} by {new}.", "In sheet {s}, {old} should be {new}. Correct it.", **names
        )
    reads = tuple(t.sheet for t in tables) if level >= 3 else ()
    return Plan(prompt=prompt, sheets=sheets(*tables), reads=reads, literals=goal)


def copy(draw: Draw, level: int) -> Plan:
    """Copy a value from one cell to another."""
    table = _shape(draw, level)
    other = _shape(draw, level) if level == 5 else table
    rows = len(table.names)
    if level == 2:
        start, (column, to) = draw.pick(rows - 1), draw.two(3)
        goal = {table.at(start + i, to): table.value(start + i, column) for i in (0, 1)}
        span, target = (f"{bare(table.at(start, c))}:{bare(table.at(start + 1, c))}" for c in (column, to))
        prompt = draw.say("Copy the values of {c} to {d}.", "Copy {c} over {d}.", c=span, d=target)
        return Plan(prompt=prompt, sheets=sheets(table), reads=(span,), literals=goal)
    first, second = draw.two(rows)
    place, to_place = (first, draw.pick(len(table.heads), 1)), (second, draw.pick(len(table.heads), 1))
    if level == 5:
        to_place = _place(draw, other)
    source, target = table.at(*place), other.at(*to_place)
    names = {"s": table.sheet, **_named(table, place)}
    names |= {"t": other.sheet, **{f"to_{key}": held for key, held in _named(other, to_place).items()}}
    if level == 1:
        prompt = draw.say(
            "Copy the value of {c} to {d}.", "{d} must get the value of {c}.", c=bare(source), d=bare(target)
        )
    elif level == 5:
        prompt = draw.say(
            "Copy the {col} of {row} in sheet {s} to the {to_col} of {to_row} in sheet {t}.",
            "The {to_col} of {to_row} in sheet {t} must get the {col} of {row} in sheet {s}.", **names,
        )  # fmt: skip
    else:
        prompt = draw.say(
            "In sheet {s}, copy the {col} of {row} to the {to_col} of {to_row}.",
            "In sheet {s}, the {to_col} of {to_row} must get the {col} of {row}.", **names,
        )  # fmt: skip
    tables = (table,) if other is table else (table, other)
    reads = (bare(source),) if level == 1 else tuple(t.sheet for t in tables)
    return Plan(prompt=prompt, sheets=sheets(*tables), reads=reads, literals={target: table.value(*place)})


def lookup(draw: Draw, level: int) -> Plan:
    """Say what a cell holds."""
    table = _shape(draw, level)
    place = _place(draw, table)
    where, found = table.at(*place), table.value(*place)
    names = {"s": table.sheet, "c": bare(where), **_named(table, place)}
    if level == 1:
        prompt = draw.say("What is in {c}?", "Which value does {c} hold?", **names)
        return Plan(prompt=prompt, sheets=sheets(table), reads=(bare(where),), answer=found)
    if level == 2:
        prompt = draw.say("What is in {c} of sheet {s}?", "Which value does {c} of sheet {s} hold?", **names)
        return Plan(prompt=prompt, sheets=sheets(_shape(draw, level), table), reads=(where,), answer=found)
    if level == 5:
        return _lookup_joined(draw)
    prompt = draw.say(
        "In sheet {s}, what is the {col} of {row}?", "Look into sheet {s}: which {col} has {row}?", **names
    )
    return Plan(prompt=prompt, sheets=sheets(table), reads=(table.sheet,), answer=found)


def _lookup_joined(draw: Draw) -> Plan:
    """The value in one sheet is the row's name in the other."""
    second = _shape(draw, 5)
    first = draw.table("?w", len(second.names))
    for row, name in zip(first.rows[1:], draw.rng.sample(second.names, len(second.names)), strict=True):
        row[2] = name
    row_index = draw.pick(len(first.names))
    key = second.names.index(str(first.value(row_index, 2)))
    column = draw.pick(len(second.heads), 1)
    prompt = draw.say(
        "Sheet {s} has the {link} of {row}. What is its {col} in sheet {t}?",
        "Take the {link} of {row} from sheet {s}. Which {col} has it in sheet {t}?",
        s=first.sheet, t=second.sheet, link=first.heads[2], row=first.names[row_index], col=second.heads[column],
    )  # fmt: skip
    reads = (first.sheet, second.sheet)
    return Plan(prompt=prompt, sheets=sheets(first, second), reads=reads, answer=second.value(key, column))
