"""The agent's tools, run inside the sandbox on the real file: read a range, write one cell.

Jobs take and return JSON values; a mistake of the agent is `{"error": text}`, never an exception. The file is saved by
openpyxl on every write, beside the old one and then moved over it, so that it is whole at any time. The process that
runs them lives on: it keeps the last workbook, and `{"fresh": true}` tells it that an episode begins.
"""

from __future__ import annotations

import io
import os
import re
from typing import Any

from openpyxl import Workbook, load_workbook
from openpyxl.utils.exceptions import IllegalCharacterError
from openpyxl.worksheet.worksheet import Worksheet

from . import cells

MAX_CELLS = 240  # of one read
MAX_TEXT = 2000  # characters of one observation
MAX_VALUE = 200  # characters of one written value
MAX_ROW, MAX_COLUMN = 200, 26  # where the agent may write
_NOT_XML = re.compile("[\ud800-\udfff\ufffe\uffff]")
_NUMBER = re.compile(r"-?\d{1,15}(\.\d{1,15})?")


_kept: dict[str, Workbook] = {}  # by path: at most one, exactly as it was loaded from the file as it is


def _take(argument: dict[str, Any]) -> Workbook:
    """The workbook of the file, no longer kept: who changes it must not give it back, as a file returns some values in
    another form (2.0 as 2) than it was given."""
    kept = None if argument["fresh"] else _kept.get(argument["path"])
    _kept.clear()
    return load_workbook(argument["path"]) if kept is None else kept


def read(argument: dict[str, Any]) -> dict[str, str]:
    """`{"path", "range"}` to `{"text"}`: one row a line, "A1: plum | B1: 7", "-" for an empty cell, formulas as typed.

    A range is "A1:B3", "B3", "plum!A1:B3", or a sheet's name for all of it.
    """
    book = _kept[argument["path"]] = _take(argument)
    try:
        sheet, box = _locate(book, str(argument["range"]))
    except LookupError as error:
        return {"error": error.args[0]}
    count = (box[2] - box[0] + 1) * (box[3] - box[1] + 1)
    if count > MAX_CELLS:
        return {"error": f"{count} cells are too many, read at most {MAX_CELLS}"}
    lines = [
        " | ".join(
            f"{cells.coordinate(row, column)}: {shown(sheet, row, column)}" for column in range(box[1], box[3] + 1)
        )
        for row in range(box[0], box[2] + 1)
    ]
    text = "\n".join(lines)
    return {"text": text if len(text) <= MAX_TEXT else text[:MAX_TEXT] + "\n... cut, read a smaller range"}


def write(argument: dict[str, Any]) -> dict[str, str]:
    """`{"path", "cell", "value"}` to `{"text": "ok"}`. The value is typed as into a spreadsheet.

    "=..." is a formula, digits are a number, "" empties the cell, a leading apostrophe makes plain text.
    """
    book = _take(argument)
    value = str(argument["value"])
    try:
        sheet, box = _locate(book, str(argument["cell"]), whole=False)
    except LookupError as error:
        return {"error": error.args[0]}
    row, column = box[:2]
    if box[:2] != box[2:]:
        return {"error": "write takes one cell, not a range"}
    if row > MAX_ROW or column > MAX_COLUMN:
        return {"error": f"{argument['cell']} is too far out, write within A1:{cells.coordinate(MAX_ROW, MAX_COLUMN)}"}
    if len(value) > MAX_VALUE:
        return {"error": f"the value is too long, at most {MAX_VALUE} characters"}
    try:
        if _NOT_XML.search(value):  # openpyxl would save what it cannot load
            raise IllegalCharacterError
        _type_into(sheet, row, column, value)
    except IllegalCharacterError:
        return {"error": "the value holds a control character"}
    beside = f"{argument['path']}.new"
    book.save(beside)
    os.replace(beside, argument["path"])
    return {"text": "ok"}


def shown(sheet: Worksheet, row: int, column: int) -> str:
    """A cell as the agent sees it, on one line; text that looks like a formula keeps its apostrophe."""
    cell = sheet._cells.get((row, column))  # sheet.cell would make one, and the sheet larger than its file
    value = None if cell is None else cell.value
    plain = isinstance(value, str) and value.startswith("=") and cell.data_type == "s"
    return (
        "-"
        if value is None
        else ("'" if plain else "") + str(value).replace("\\", "\\\\").replace("\n", "\\n").replace("\r", "\\r")
    )


def _type_into(sheet: Worksheet, row: int, column: int, value: str) -> None:
    target = sheet.cell(row, column)
    if value == "":
        target.value = None
    elif value.startswith("'"):
        target.value = value[1:]
        target.data_type = "s"
    elif _NUMBER.fullmatch(value):
        target.value = float(value) if "." in value else int(value)
    else:
        target.value = value


def _locate(book: Workbook, reference: str, *, whole: bool = True) -> tuple[Worksheet, tuple[int, int, int, int]]:
    """The sheet and the area meant. Raises LookupError with the text for the agent."""
    name, rest = cells.split(reference)
    by_name = {title.casefold(): book[title] for title in book.sheetnames}
    if not name and rest.casefold() in by_name:
        if not whole:
            raise LookupError(f"{rest} is a sheet, write takes one cell such as {rest}!A1")
        sheet = by_name[rest.casefold()]
        return sheet, (1, 1, sheet.max_row, sheet.max_column)
    if name and name.casefold() not in by_name:
        raise LookupError(f"no sheet {name[:40]}, there is {', '.join(book.sheetnames)}")
    box = cells.area(rest)
    if box is None:
        raise LookupError(f"no cell or range {rest[:40]!r}, give one such as B3 or A1:B3")
    return by_name[name.casefold()] if name else book.worksheets[0], box


def warm() -> None:
    """Let openpyxl fill its caches at import, so that forked jobs find them filled."""
    file = io.BytesIO()
    Workbook().save(file)
    load_workbook(file)


warm()
