"""Families whose answer is a formula: aggregate, conditional, rowwise, join. A typed-in result is worth nothing.

Levels: 1 names all cells, 2 two formulas or a second argument, 3 columns and rows by name, 4 distractors, 5 two sheets.
"""

from __future__ import annotations

from k3rl.environments.office.formula import Formula
from k3rl.environments.office.plan import Plan, bare, sheets
from k3rl.environments.office.tables import Draw, Table

_AGGREGATES = {"SUM": "sum", "MAX": "maximum", "MIN": "minimum", "AVERAGE": "average"}
_SIGNS = {"+": "plus", "-": "minus", "*": "times"}
RESULT = "result"  # names the row that results go to


def _with_result_row(draw: Draw, kinds: str, rows: int) -> Table:
    """A table whose last row is named "result" and otherwise empty."""
    table = draw.table(kinds, rows)
    table.rows.append([RESULT, *[None] * len(kinds)])
    return table


def _target_sheet(draw: Draw) -> tuple[Table, int, int]:
    """A second sheet and the place in it that a result of the first goes to."""
    table = draw.table("n", 3)
    row = draw.pick(3)
    table.rows[row + 1][1] = None
    return table, row, 1


def aggregate(draw: Draw, level: int) -> Plan:
    """Sum, maximum, minimum or average of a column."""
    operations = draw.rng.sample(list(_AGGREGATES), 2)
    words = [_AGGREGATES[op] for op in operations]
    rows = 3 + draw.pick(2)
    if level <= 2:
        table = draw.table("nn", rows)
        columns = [1, 2] if level == 2 else [draw.pick(3, 1)]
        goal = {
            table.at(rows, c): Formula(op=op, args=(table.span(c),)) for c, op in zip(columns, operations, strict=False)
        }
        where, spans = [bare(target) for target in goal], [bare(formula.args[0]) for formula in goal.values()]
        if level == 1:
            prompt = draw.say(
                "Put a formula for the {f} of {r} in {c}.", "In {c}, put the {f} of {r} as a formula.",
                f=words[0], r=spans[0], c=where[0],
            )  # fmt: skip
        else:
            prompt = draw.say(
                "Put a formula for the {f} of {r} in {c} and one for the {g} of {q} in {d}.",
                "As formulas, put the {f} of {r} in {c} and the {g} of {q} in {d}.",
                f=words[0], r=spans[0], c=where[0], g=words[1], q=spans[1], d=where[1],
            )  # fmt: skip
        return Plan(prompt=prompt, sheets=sheets(table), formulas=goal)
    if level == 5:
        table, (target, row, column) = draw.table("nn", rows), _target_sheet(draw)
        source = draw.pick(3, 1)
        prompt = draw.say(
            "In sheet {t}, set the {to_col} of {row} to a formula for the {f} of {col} in sheet {s}.",
            "The {to_col} of {row} in sheet {t} is the {f} of {col} in sheet {s}. Put it as a formula.",
            t=target.sheet, to_col=target.heads[column], row=target.names[row], f=words[0], col=table.heads[source],
            s=table.sheet,
        )  # fmt: skip
        goal = {target.at(row, column): Formula(op=operations[0], args=(table.span(source),))}
        return Plan(prompt=prompt, sheets=sheets(table, target), reads=(table.sheet, target.sheet), formulas=goal)
    table = _with_result_row(draw, "n" if level == 3 else "nnn", rows)
    column = draw.pick(len(table.heads), 1)
    prompt = draw.say(
        "In sheet {s}, put a formula for the {f} of {col} in its result row.",
        "Sheet {s} needs the {f} of {col} in its result row, as a formula.",
        s=table.sheet, f=words[0], col=table.heads[column],
    )  # fmt: skip
    goal = {table.at(rows, column): Formula(op=operations[0], args=(table.span(column, rows=rows),))}
    return Plan(prompt=prompt, sheets=sheets(table), reads=(table.sheet,), formulas=goal)


def _repeat(draw: Draw, table: Table, column: int, rows: int) -> str:
    """Make one word of a column stand in one to `rows` - 1 of its rows; the word."""
    key = draw.word()
    for row in draw.rng.sample(range(rows), 1 + draw.pick(rows - 1)):
        table.rows[row + 1][column] = key
    return key


def conditional(draw: Draw, level: int) -> Plan:
    """Count or add up where a column holds a word, or count the numbers above a bound."""
    rows = 3 + draw.pick(2)
    adding, bounded = level in (2, 4) or (level == 5 and draw.pick(2) == 1), draw.pick(2) == 1
    kinds = {1: "wn", 2: "wn", 3: "n" if bounded else "w", 4: draw.rng.choice(("wnn", "nwn", "nnw")), 5: "wn"}[level]
    table = draw.table(kinds, rows) if level in (1, 2, 5) else _with_result_row(draw, kinds, rows)
    numbers = [c for c, kind in enumerate(kinds, 1) if kind == "n"]
    tested = kinds.index("w") + 1 if "w" in kinds and (adding or level != 1 or not bounded) else numbers[0]
    summed = draw.rng.choice(numbers) if adding else tested
    over = kinds[tested - 1] == "n"
    if over:
        bound = int(draw.rng.choice([table.value(row, tested) for row in range(rows)]))
        test, condition = (">", bound), f"above {bound}"
    else:
        key = _repeat(draw, table, tested, rows)
        test, condition = ("=", key), key
    args = (table.span(tested, rows=rows), *((table.span(summed, rows=rows),) if adding else ()))
    formula = Formula(op="SUMIF" if adding else "COUNTIF", args=args, test=test)
    named = level >= 3
    what, where = (table.heads[tested], table.heads[summed]) if named else (bare(args[0]), bare(args[-1]))
    counted = f"the numbers {condition}" if over else condition
    task = f"adds up {where} where {what} is {condition}" if adding else f"counts {counted} in {what}"
    return _conditional_plan(draw, level, table, formula, task, summed)


def _conditional_plan(draw: Draw, level: int, table: Table, formula: Formula, task: str, column: int) -> Plan:
    """Where the formula goes: beside the table, into its result row, or into another sheet."""
    if level <= 2:
        where = table.at(draw.pick(len(table.names)), len(table.heads))
        prompt = draw.say(
            "In {c}, put a formula that {task}.", "{c} needs a formula that {task}.", c=bare(where), task=task
        )
        return Plan(prompt=prompt, sheets=sheets(table), formulas={where: formula})
    if level == 5:
        target, row, to_column = _target_sheet(draw)
        prompt = draw.say(
            "In sheet {t}, set the {col} of {row} to a formula that {task} in sheet {s}.",
            "The {col} of {row} in sheet {t} needs a formula that {task} in sheet {s}.",
            t=target.sheet, s=table.sheet, col=target.heads[to_column], row=target.names[row], task=task,
        )  # fmt: skip
        goal = {target.at(row, to_column): formula}
        return Plan(prompt=prompt, sheets=sheets(table, target), reads=(table.sheet, target.sheet), formulas=goal)
    where = table.at(len(table.names) - 1, column)
    prompt = draw.say(
        "In sheet {s}, put under {col} in the result row a formula that {task}.",
        "The result row of sheet {s} needs under {col} a formula that {task}.",
        s=table.sheet, col=table.heads[column], task=task,
    )  # fmt: skip
    return Plan(prompt=prompt, sheets=sheets(table), reads=(table.sheet,), formulas={where: formula})


def rowwise(draw: Draw, level: int) -> Plan:
    """Arithmetic over the cells of a row."""
    signs = [draw.rng.choice(list(_SIGNS)) for _ in range(2)]
    words = [_SIGNS[sign] for sign in signs]
    if level <= 2:
        table = draw.table("nn", 3 + draw.pick(2))
        places = draw.two(len(table.names))[:level]
        goal = {
            table.at(row, 3): Formula(op=sign, args=(table.at(row, 1), table.at(row, 2)))
            for row, sign in zip(places, signs, strict=False)
        }
        said = [f"{bare(f.args[0])} {word} {bare(f.args[1])}" for f, word in zip(goal.values(), words, strict=False)]
        where = [bare(target) for target in goal]
        if level == 1:
            prompt = draw.say("In {c}, put a formula for {e}.", "{c} must be {e}, as a formula.", c=where[0], e=said[0])
        else:
            prompt = draw.say(
                "In {c}, put a formula for {e}, in {d} one for {f}.",
                "As formulas, {c} must be {e} and {d} must be {f}.",
                c=where[0], e=said[0], d=where[1], f=said[1],
            )  # fmt: skip
        return Plan(prompt=prompt, sheets=sheets(table), formulas=goal)
    if level == 5:
        return _rowwise_joined(draw, signs[0])
    kinds = "nn-" if level == 3 else "".join(draw.rng.sample("nnn-", 4))
    table = draw.table(kinds, 3)
    row, empty = draw.pick(3), kinds.index("-") + 1
    left, right = draw.rng.sample([c for c, kind in enumerate(kinds, 1) if kind == "n"], 2)
    prompt = draw.say(
        "In sheet {s}, set the {z} of {row} to its {x} {op} its {y}, as a formula.",
        "In sheet {s}, the {z} of {row} needs a formula for its {x} {op} its {y}.",
        s=table.sheet, z=table.heads[empty], row=table.names[row], x=table.heads[left], y=table.heads[right],
        op=words[0],
    )  # fmt: skip
    goal = {table.at(row, empty): Formula(op=signs[0], args=(table.at(row, left), table.at(row, right)))}
    return Plan(prompt=prompt, sheets=sheets(table), reads=(table.sheet,), formulas=goal)


def _rowwise_joined(draw: Draw, sign: str) -> Plan:
    """One operand stands in another sheet, whose rows are in another order."""
    target, source = draw.table("n-", 3), draw.table("n", 3)
    for row, name in zip(source.rows[1:], draw.rng.sample(target.names, 3), strict=True):
        row[0] = name
    row = draw.pick(3)
    other = source.names.index(target.names[row])
    prompt = draw.say(
        "In sheet {s}, set the {z} of {row} to its {x} {op} its {y} from sheet {t}, as a formula.",
        "In sheet {s}, the {z} of {row} needs a formula for its {x} {op} its {y} from sheet {t}.",
        s=target.sheet, t=source.sheet, z=target.heads[2], row=target.names[row], x=target.heads[1], y=source.heads[1],
        op=_SIGNS[sign],
    )  # fmt: skip
    goal = {target.at(row, 2): Formula(op=sign, args=(target.at(row, 1), source.at(other, 1)))}
    return Plan(prompt=prompt, sheets=sheets(target, source), reads=(target.sheet, source.sheet), formulas=goal)
