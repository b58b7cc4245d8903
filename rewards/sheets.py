"""Parts of a spreadsheet's reward: pure functions of cells as plain values, before and after.

Contents are `{"plum": {"A1": ["s", "fig"], "B1": ["n", 7]}}`: sheets in their order, cells that hold something, each
with its type (n number, s text, b truth value, f formula, e error). References are "plum!A1".
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TypeAlias

from k3rl.types import Json

Contents: TypeAlias = Mapping[str, Mapping[str, Sequence[Json]]]


def typed(value: str | int | float) -> list[Json]:
    """The typed cell of a plain value that is no formula."""
    return ["s" if isinstance(value, str) else "n", value]


def changed(before: Contents, after: Contents) -> set[str]:
    """References whose content differs, the sheet's name alone ("plum!") where a sheet came, went or moved."""
    found = {f"{name}!" for name in before.keys() ^ after.keys()}
    if not found and list(before) != list(after):
        found = {f"{name}!" for name in before}
    for name in before.keys() & after.keys():
        old, new = before[name], after[name]
        found |= {f"{name}!{at}" for at in old.keys() | new.keys() if not same_cell(old.get(at), new.get(at))}
    return found


def same_cell(left: Sequence[Json] | None, right: Sequence[Json] | None) -> bool:
    """Equal type and value; 7 and 7.0 are one number. None is an empty cell."""
    if left is None or right is None:
        return left is right
    return left[0] == right[0] and (left[1] == right[1] or (left[0] == "n" and same_value(left[1], right[1])))


def same_value(left: Json, right: Json, *, relative: float = 1e-9, absolute: float = 1e-9) -> bool:
    """Whether two calculated values agree: numbers within the tolerances, texts exactly, errors never."""
    numeric = [isinstance(value, int | float) and not isinstance(value, bool) for value in (left, right)]
    if all(numeric):
        return math.isclose(left, right, rel_tol=relative, abs_tol=absolute)
    return type(left) is type(right) and not isinstance(left, dict) and left is not None and bool(left == right)


def all_same(left: Sequence[Json], right: Sequence[Json]) -> bool:
    """`same_value` throughout, over at least one value and equally many."""
    return bool(left) and len(left) == len(right) and all(same_value(a, b) for a, b in zip(left, right, strict=True))
