"""Bugs by syntax-tree mutation: every way to spoil one function by one small change.

The tree says what may be changed, the change itself is made in the source text at the node's position, so that
layout and everything else stay as they were. Source must be ASCII (the tree counts bytes, we count characters).
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import pairwise

OPERATORS: dict[type[ast.operator], tuple[str, str]] = {
    ast.Add: ("+", "-"),
    ast.Sub: ("-", "+"),
    ast.Mult: ("*", "+"),
    ast.FloorDiv: ("//", "%"),
    ast.Mod: ("%", "//"),
}
"""Operator class: its symbol and what it is mistaken for."""

COMPARISONS: dict[type[ast.cmpop], tuple[str, tuple[str, ...]]] = {
    ast.Lt: ("<", ("<=", ">")),
    ast.LtE: ("<=", ("<", ">=")),
    ast.Gt: (">", (">=", "<")),
    ast.GtE: (">=", (">", "<=")),
    ast.Eq: ("==", ("!=",)),
    ast.NotEq: ("!=", ("==",)),
    ast.In: (" in ", (" not in ",)),
    ast.NotIn: (" not in ", (" in ",)),
}

_TWINS = (
    ("append", "remove"),
    ("endswith", "startswith"),
    ("index", "count"),
    ("keys", "values"),
    ("ljust", "rjust"),
    ("lower", "upper"),
    ("lstrip", "rstrip"),
    ("partition", "rpartition"),
    ("max", "min"),
    ("sum", "len"),
    ("KeyError", "ValueError"),
)
ATTRIBUTES: dict[str, str] = {
    **dict(_TWINS),
    **{right: left for left, right in _TWINS},
    "strip": "lstrip",
}
"""Methods, builtins and exceptions that are mistaken for each other."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Mutation:
    """`Mutation(kind="operator", source="def kiwi(fig):\\n    return fig - 7\\n")`: the whole spoilt source."""

    kind: str
    source: str


class _Text:
    """Source text addressed by tree positions."""

    def __init__(self, source: str) -> None:
        if not source.isascii():
            raise ValueError("mutation needs ASCII source: tree positions count bytes")
        self.source = source
        self.starts = [0]
        for line in source.splitlines(keepends=True):
            self.starts.append(self.starts[-1] + len(line))

    def span(self, node: ast.expr | ast.stmt | ast.keyword) -> tuple[int, int]:
        assert node.end_lineno is not None
        assert node.end_col_offset is not None
        return (
            self.starts[node.lineno - 1] + node.col_offset,
            self.starts[node.end_lineno - 1] + node.end_col_offset,
        )

    def of(self, node: ast.expr) -> str:
        start, end = self.span(node)
        return self.source[start:end]

    def replace(self, start: int, end: int, new: str) -> str:
        return self.source[:start] + new + self.source[end:]

    def exchange(self, first: ast.expr | ast.stmt, second: ast.expr | ast.stmt) -> str:
        """The two nodes' texts in each other's place; `first` stands before `second`."""
        (a, b), (c, d) = self.span(first), self.span(second)
        s = self.source
        return s[:a] + s[c:d] + s[b:c] + s[a:b] + s[d:]

    def between(self, left: ast.expr, right: ast.expr, symbol: str, new: str) -> str:
        """`symbol` between two operands replaced by `new` (an operator has no position of its own)."""
        start, end = self.span(left)[1], self.span(right)[0]
        at = self.source.index(symbol, start, end)
        return self.replace(at, at + len(symbol), new)


def _operator(text: _Text, tree: ast.FunctionDef) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.BinOp) and type(node.op) in OPERATORS:
            symbol, new = OPERATORS[type(node.op)]
            yield text.between(node.left, node.right, symbol, new)
        elif isinstance(node, ast.AugAssign) and type(node.op) in OPERATORS:
            symbol, new = OPERATORS[type(node.op)]
            yield text.between(node.target, node.value, symbol, new)


def _comparison(text: _Text, tree: ast.FunctionDef) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Compare):
            operands = [node.left, *node.comparators]
            for left, op, right in zip(operands, node.ops, operands[1:], strict=False):
                symbol, others = COMPARISONS[type(op)]
                for new in others:
                    yield text.between(left, right, symbol, new)


def _logic(text: _Text, tree: ast.FunctionDef) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.BoolOp) and len(node.values) == 2:
            symbol, new = ("and", "or") if isinstance(node.op, ast.And) else ("or", "and")
            yield text.between(node.values[0], node.values[1], symbol, new)
        elif isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
            yield text.replace(*text.span(node), text.of(node.operand))


def _numbers(tree: ast.FunctionDef) -> Iterator[ast.Constant]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and type(node.value) is int:
            yield node


def _off_by_one(text: _Text, tree: ast.FunctionDef) -> Iterator[str]:
    for node in _numbers(tree):
        assert isinstance(node.value, int)
        yield text.replace(*text.span(node), str(node.value + 1))
        if node.value > 0:
            yield text.replace(*text.span(node), str(node.value - 1))


def _constant(text: _Text, tree: ast.FunctionDef) -> Iterator[str]:
    """A number by one a little further off, a truth value by the other, a string by another of the function."""
    for node in _numbers(tree):
        assert isinstance(node.value, int)
        yield text.replace(*text.span(node), str(node.value + 3))
    body = [n for statement in tree.body[_documented(tree) :] for n in ast.walk(statement)]
    strings = [n for n in body if isinstance(n, ast.Constant) and isinstance(n.value, str)]
    for node in strings:
        for new in sorted({text.of(other) for other in strings} - {text.of(node)}):
            yield text.replace(*text.span(node), new)
    for truth in body:
        if isinstance(truth, ast.Constant) and isinstance(truth.value, bool):
            yield text.replace(*text.span(truth), str(not truth.value))


def _swapped(text: _Text, tree: ast.FunctionDef) -> Iterator[str]:
    """Two arguments of a call, or the operands of an operator whose order counts."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and len(node.args) == 2:
            yield text.exchange(node.args[0], node.args[1])
        elif isinstance(node, ast.BinOp) and isinstance(node.op, ast.Sub | ast.FloorDiv | ast.Mod | ast.Add):
            simple = (ast.Name, ast.Constant, ast.Subscript)
            if isinstance(node.left, simple) and isinstance(node.right, simple):
                yield text.exchange(node.left, node.right)


def _name(text: _Text, tree: ast.FunctionDef) -> Iterator[str]:
    """A variable by another that the function knows."""
    local = [argument.arg for argument in tree.args.args]
    local += [n.id for n in ast.walk(tree) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)]
    for node in ast.walk(tree):
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load) and node.id in local:
            for new in dict.fromkeys(local):
                if new != node.id:
                    yield text.replace(*text.span(node), new)


def _attribute(text: _Text, tree: ast.FunctionDef) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and node.attr in ATTRIBUTES:
            end = text.span(node)[1]
            yield text.replace(end - len(node.attr), end, ATTRIBUTES[node.attr])
        elif isinstance(node, ast.Name) and node.id in ATTRIBUTES:
            yield text.replace(*text.span(node), ATTRIBUTES[node.id])


def _slice(text: _Text, tree: ast.FunctionDef) -> Iterator[str]:
    """The other side of a cut: `[:n]` and `[n:]`; and the other end of a sequence: `[0]` and `[-1]`."""
    for node in ast.walk(tree):
        if not isinstance(node, ast.Subscript):
            continue
        inner = text.of(node.slice)
        if inner in ("0", "-1"):
            yield text.replace(*text.span(node.slice), "-1" if inner == "0" else "0")
        elif isinstance(node.slice, ast.Slice) and inner.count(":") == 1:
            low, high = inner.split(":")
            if not low or not high:
                yield text.replace(*text.span(node.slice), f"{high}:{low}")


def _bodies(tree: ast.FunctionDef) -> Iterator[list[ast.stmt]]:
    yield tree.body[_documented(tree) :]
    for node in ast.walk(tree):
        if isinstance(node, ast.For | ast.If):
            yield node.body


def _removed(text: _Text, tree: ast.FunctionDef) -> Iterator[str]:
    """A branch without an else, or one statement, taken out whole; something must be left of the body."""
    for body in _bodies(tree):
        for statement in body:
            if len(body) > 1 and isinstance(statement, ast.If | ast.Expr) and not getattr(statement, "orelse", None):
                assert statement.end_lineno is not None
                yield text.replace(text.starts[statement.lineno - 1], text.starts[statement.end_lineno], "")


def _shuffled(text: _Text, tree: ast.FunctionDef) -> Iterator[str]:
    """Two neighbouring simple statements in the wrong order."""
    simple = (ast.Assign, ast.AugAssign, ast.Expr)
    for body in _bodies(tree):
        for first, second in pairwise(body):
            if isinstance(first, simple) and isinstance(second, simple):
                yield text.exchange(first, second)


def _documented(tree: ast.FunctionDef) -> int:
    """1 if the body begins with a docstring, else 0."""
    return int(ast.get_docstring(tree, clean=False) is not None)


KINDS: dict[str, Callable[[_Text, ast.FunctionDef], Iterator[str]]] = {
    "operator": _operator,
    "comparison": _comparison,
    "logic": _logic,
    "off_by_one": _off_by_one,
    "constant": _constant,
    "swapped": _swapped,
    "name": _name,
    "attribute": _attribute,
    "slice": _slice,
    "removed": _removed,
    "shuffled": _shuffled,
}


def mutations(source: str, kinds: tuple[str, ...] = tuple(KINDS)) -> list[Mutation]:
    """All single mutations of a source text that holds exactly one function, in a fixed order, without repeats.

    Raises ValueError if the text is not one function or not ASCII. Some mutants may behave as the original does:
    whoever plants a bug must run the tests.
    """
    tree = ast.parse(source).body
    if len(tree) != 1 or not isinstance(tree[0], ast.FunctionDef):
        raise ValueError("mutation works on one function at a time; pass the text of a single def")
    text = _Text(source)
    found: dict[str, Mutation] = {}
    for kind in kinds:
        for mutant in KINDS[kind](text, tree[0]):
            if mutant != source and mutant not in found:
                found[mutant] = Mutation(kind=kind, source=mutant)
    return list(found.values())
