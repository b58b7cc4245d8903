"""A1 references as plain functions. No import outside the standard library: the sandbox's jobs use it too."""

from __future__ import annotations

import re

_CELL = re.compile(r"\$?([A-Za-z]{1,3})\$?([1-9][0-9]{0,6})")
MAX_ROW, MAX_COLUMN = 1_048_576, 16_384  # of the file format


def letters(column: int) -> str:
    """1 is "A", 27 is "AA"."""
    out = ""
    while column:
        column, rest = divmod(column - 1, 26)
        out = chr(65 + rest) + out
    return out


def number(column: str) -> int:
    """ "A" is 1, "AA" is 27."""
    value = 0
    for letter in column.upper():
        value = value * 26 + ord(letter) - 64
    return value


def coordinate(row: int, column: int) -> str:
    """`coordinate(3, 2)` is "B3"."""
    return f"{letters(column)}{row}"


def split(reference: str) -> tuple[str, str]:
    """ "plum!B3" is ("plum", "B3"); without a sheet ("", "B3"). Quotes around the sheet are taken off."""
    sheet, mark, rest = reference.strip().rpartition("!")
    if not mark:
        return "", rest.strip()
    if len(sheet) >= 2 and sheet[0] == sheet[-1] == "'":
        sheet = sheet[1:-1].replace("''", "'")
    return sheet.strip(), rest.strip()


def cell(text: str) -> tuple[int, int] | None:
    """(row, column) of "B3" or "$B$3"; None where it is no cell of the file format."""
    match = _CELL.fullmatch(text)
    if match is None:
        return None
    row, column = int(match[2]), number(match[1])
    return (row, column) if row <= MAX_ROW and column <= MAX_COLUMN else None


def area(text: str) -> tuple[int, int, int, int] | None:
    """(first row, first column, last row, last column) of "A1:B3" or "A1", corners in any order; None if malformed."""
    first, mark, second = text.partition(":")
    a, b = cell(first), cell(second if mark else first)
    if a is None or b is None:
        return None
    return min(a[0], b[0]), min(a[1], b[1]), max(a[0], b[0]), max(a[1], b[1])


def expand(reference: str) -> list[str]:
    """Cells of "plum!A1:B2" by rows: ["plum!A1", "plum!B1", "plum!A2", "plum!B2"]."""
    sheet, rest = split(reference)
    box = area(rest)
    if box is None:
        raise ValueError(f"not a range: {reference!r}")
    prefix = f"{sheet}!" if sheet else ""
    return [f"{prefix}{coordinate(r, c)}" for r in range(box[0], box[2] + 1) for c in range(box[1], box[3] + 1)]
