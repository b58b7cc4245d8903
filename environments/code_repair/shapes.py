"""What the generated functions look like: families of shapes, each a rule in words and the code that follows it.

Placeholders: {a} {b} {c} names, {n} < {m} numbers, {k} a small one, {p} {q} {r} words. A shape's `inputs` name one
generator of k3rl.environments.code_repair.inputs for each argument; arguments take the names {a}, {b}, {c} in order.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Shape:
    """`Shape("{a} plus {n}", "int", "return {a} + {n}")`: rule (the docstring), inputs, lines of the body."""

    rule: str
    inputs: str
    body: str


NUMERIC = (
    Shape("{a} plus {n}", "int", "return {a} + {n}"),
    Shape("{a} minus {n}", "int", "return {a} - {n}"),
    Shape("{a} minus {b}", "int int", "return {a} - {b}"),
    Shape("{a} times {n}, plus {b}", "int int", "return {a} * {n} + {b}"),
    Shape("rest of {a} by {n}", "int", "return {a} % {n}"),
    Shape("{a} by {n}, whole", "int", "return {a} // {n}"),
    Shape("distance of {a} and {b}", "int int", "return abs({a} - {b})"),
    Shape("{a} plus {n}, doubled", "int", "{b} = {a} + {n}\n{b} += {b}\nreturn {b}"),
    Shape("sum of {a}", "ints", "{b} = 0\nfor {c} in {a}:\n    {b} += {c}\nreturn {b}"),
)

CHECKS = (
    Shape("{a} below {b}", "int peer", "return {a} < {b}"),
    Shape("{a} at most {b}", "int peer", "return {a} <= {b}"),
    Shape("{a} at least {b}", "int peer", "return {a} >= {b}"),
    Shape("{a} equals {b}", "int peer", "return {a} == {b}"),
    Shape("{a} and {b} above {n}", "near near", "return {a} > {n} and {b} > {n}"),
    Shape("{a} or {b} above {n}", "near near", "return {a} > {n} or {b} > {n}"),
    Shape("smaller of {a} and {n}", "near", "return min({a}, {n})"),
    Shape("{a}, at most {n}", "near", "if {a} > {n}:\n    return {n}\nreturn {a}"),
)

TEXT = (
    Shape("{a} in capitals", "word", "return {a}.upper()"),
    Shape("{a}, dash, {b}", "word word", 'return {a} + "-" + {b}'),
    Shape("{a} joined by commas", "words", 'return ",".join({a})'),
    Shape("{a}, dashes to spaces", "dashed", 'return {a}.replace("-", " ")'),
    Shape("{a} without outer spaces", "spaced", "return {a}.strip()"),
    Shape("{a} filled left to {n}", "word", "return {a}.rjust({n})"),
    Shape("{a} filled right to {n}", "word", "return {a}.ljust({n})"),
    Shape("{a} without first letter", "word", "return {a}[1:]"),
)

PARSERS = (
    Shape("key of {a}", "assign", 'return {a}.split("=")[0]'),
    Shape("value of {a}", "assign", 'return {a}.split("=")[-1]'),
    Shape("number of {a}", "assign", 'return int({a}.split("=")[1])'),
    Shape("{a} begins with a dash", "option", 'return {a}.startswith("-")'),
    Shape("{a} ends with a dash", "option", 'return {a}.endswith("-")'),
    Shape("{a} before the last dash", "dashes", 'return {a}.rpartition("-")[0]'),
    Shape("{a} as number, else {n}", "numeral", "try:\n    return int({a})\nexcept ValueError:\n    return {n}"),
    Shape("fields of {a}", "dashes", 'return {a}.split("-")'),
)

LISTS = (
    Shape("first of {a}", "words", "return {a}[0]"),
    Shape("last of {a}", "words", "return {a}[-1]"),
    Shape("first {k} of {a}", "words", "return {a}[:{k}]"),
    Shape("{a} after the first {k}", "words", "return {a}[{k}:]"),
    Shape("{a}, largest first", "ints", "return sorted({a}, reverse=True)"),
    Shape("{a} with {b} at the end", "words word", "{a}.append({b})\nreturn {a}"),
    Shape("{a} without {b}", "words member", "{a}.remove({b})\nreturn {a}"),
    Shape("place of {b} in {a}", "words member", "return {a}.index({b})"),
)

COUNTERS = (
    Shape("one more {b} in {a}", "counts key", "{a}[{b}] = {a}.get({b}, 0) + 1\nreturn {a}"),
    Shape("{n} more {b} in {a}", "counts key", "{a}[{b}] = {a}.get({b}, 0) + {n}\nreturn {a}"),
    Shape("count of {b} in {a}", "counts key", "return {a}.get({b}, 0)"),
    Shape("total of {a}", "counts", "return sum({a}.values())"),
    Shape("highest of {a}", "counts", "return max({a}.values())"),
    Shape("times {b} is in {a}", "repeats member", "return {a}.count({b})"),
    Shape("items of {a} above {n}", "nears", "return [{b} for {b} in {a} if {b} > {n}]"),
    Shape("{b} is in {a}", "counts key", "return {b} in {a}"),
)

QUEUES = (
    Shape("oldest of {a}", "words", "return {a}.pop(0)"),
    Shape("newest of {a}", "words", "return {a}.pop(-1)"),
    Shape("{a} with {b} in front", "words word", "{a}.insert(0, {b})\nreturn {a}"),
    Shape("slot after {a} of {n}", "int", "return ({a} + 1) % {n}"),
    Shape("{a} turned by one", "words", "return {a}[1:] + {a}[:1]"),
    Shape("later of {a} and {b}", "int int", "return max({a}, {b})"),
    Shape("places left of {n} in {a}", "words", "return {n} - len({a})"),
    Shape("{a} holds over {k}", "queue", "return len({a}) > {k}"),
)

MACHINES = (
    Shape("'{q}' on '{p}', else {b}", "state word", 'if {a} == "{p}":\n    return "{q}"\nreturn {b}'),
    Shape("{b} on '{p}', else '{q}'", "state word", 'if {a} == "{p}":\n    return {b}\nreturn "{q}"'),
    Shape("'{q}' when {b} is '{p}', else {a}", "state state", 'if {b} == "{p}":\n    return "{q}"\nreturn {a}'),
    Shape("{a} is '{p}' or '{q}'", "state", 'return {a} in ("{p}", "{q}")'),
    Shape("{a} is neither '{p}' nor '{q}'", "state", 'return {a} not in ("{p}", "{q}")'),
    Shape("next of {a}, {n} to 0", "near", "if {a} == {n}:\n    return 0\nreturn {a} + 1"),
    Shape(
        "{a} up {n} on '{p}', else down {n}", "int state", 'if {b} == "{p}":\n    return {a} + {n}\nreturn {a} - {n}'
    ),
    Shape("{a} is '{p}' and {b} above {n}", "state near", 'return {a} == "{p}" and {b} > {n}'),
)

INTERVALS = (
    Shape("length from {a} to {b}", "int int", "return {b} - {a}"),
    Shape("{a} and {b} meet", "span span", "return {a}[0] <= {b}[1] and {b}[0] <= {a}[1]"),
    Shape("{a} holds {b}", "span int", "return {a}[0] <= {b} <= {a}[1]"),
    Shape("{a} from {n} to {m}", "near", "return max({n}, min({a}, {m}))"),
    Shape("{a} longer by {n}", "span", "return [{a}[0], {a}[1] + {n}]"),
    Shape("end of {a}", "span", "return {a}[1]"),
)

GRIDS = (
    Shape("cell of row {a}, column {b}, width {n}", "int int", "return {a} * {n} + {b}"),
    Shape("row of cell {a}, width {n}", "int", "return {a} // {n}"),
    Shape("column of cell {a}, width {n}", "int", "return {a} % {n}"),
    Shape("last row of {a}", "grid", "return {a}[-1]"),
    Shape("top corner of {a}", "grid", "return {a}[0][0]"),
    Shape("steps from {a} to {b}", "span span", "return abs({a}[0] - {b}[0]) + abs({a}[1] - {b}[1])"),
)

TRAINED: dict[str, tuple[Shape, ...]] = {
    "numeric": NUMERIC,
    "checks": CHECKS,
    "text": TEXT,
    "parsers": PARSERS,
    "lists": LISTS,
    "counters": COUNTERS,
    "queues": QUEUES,
    "machines": MACHINES,
}
HELDOUT: dict[str, tuple[Shape, ...]] = {"intervals": INTERVALS, "grids": GRIDS}
SHAPES: dict[str, tuple[Shape, ...]] = {**TRAINED, **HELDOUT}
