"""The agent's tools, run inside the sandbox on the real file: read a range, write one cell.

Jobs take and return JSON values; a mistake of the agent is `{"error": text}`, never an exception. The process that runs
them lives on and keeps the workbook: the file is loaded by the episode's first job (which says `"fresh": true`), saved
when somebody is to see what was written, and then loaded again, as openpyxl left it.
"""

from __future__ import annotations

import io
import os
import re
from typing import Any

from openpyxl import Workbook, load_workbook
from openpyxl.worksheet.worksheet import Worksheet

from . import cells

MAX_CELLS = 240  # of one read
MAX_TEXT = 2000  # characters of one observation
MAX_VALUE = 200  # characters of one written value
MAX_ROW, MAX_COLUMN = 200, 26  # where the agent may write
_NOT_XML = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\ud800-\udfff\ufffe\uffff]")
_NUMBER = re.compile(r"-?\d{1,15}(\.\d{1,15})?")


class _Open:
    """The one workbook at work. `unsaved`: written to since it was loaded."""

    def __init__(self) -> None:
        self.path, self.book, self.unsaved = "", Workbook(), False

    def load(self, argument: dict[str, Any], *, as_saved: bool) -> Workbook:
        """The workbook; with `as_saved` as the file gives it back, which may be in another form (2.0 as 2)."""
        path: str = argument["path"]
        fresh = argument["fresh"] or path != self.path
        if as_saved and self.unsaved and not fresh:
            self.save()
            fresh = True
        if fresh:
            self.path, self.unsaved = "", False  # until it is loaded
            self.book, self.path = load_workbook(path), path
        return self.book

    def save(self) -> None:
        """Write the file beside the old one and move it over that, so that it is whole at any time."""
        self.book.save(f"{self.path}.new")
        os.replace(f"{self.path}.new", self.path)
        self.unsaved = False


_open = _Open()


def read(argument: dict[str, Any]) -> dict[str, str]:
    """`{"path", "range"}` to `{"text"}`: one row a line, "A1: plum | B1: 7", "-" for an empty cell, formulas as typed.

    A range is "A1:B3", "B3", "plum!A1:B3", or a sheet's name for all of it.
    """
    book = _open.load(argument, as_saved=True)
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
    book = _open.load(argument, as_saved=False)
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
    if _NOT_XML.search(value):
        return {"error": "the value holds a control character"}
    _type_into(sheet, row, column, value)
    _open.unsaved = True
    return {"text": "ok"}


def save(argument: dict[str, Any]) -> None:
    """`{"path"}`: bring the file up to date."""
    if _open.unsaved and _open.path == argument["path"]:
        _open.save()


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
    sheet._cells.pop((row, column), None)  # openpyxl does not set back all that an earlier value set
    target = sheet.cell(row, column)
    if value in ("", "'"):  # a file does not keep a text of no letters
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
