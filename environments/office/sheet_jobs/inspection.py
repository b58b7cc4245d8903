"""The judge's jobs, run in a fresh sandbox on the file that the agent left: its contents as plain values.

The file is hostile until proven otherwise: its size is known before anything is unpacked, and whatever a task's
workbook never has (another part, a name, a hidden or foreign sheet, a link) is reported, so that it can be refused.
"""

from __future__ import annotations

import zipfile
from typing import Any

from openpyxl import Workbook, load_workbook
from openpyxl.cell.cell import Cell

MAX_PARTS = 64
MAX_BYTES = 4 << 20  # of all parts, unpacked
MAX_CELLS = 4000
_KNOWN = ("[Content_Types].xml", "_rels/.rels", "docProps/", "xl/workbook.xml", "xl/_rels/workbook.xml.rels",
          "xl/styles.xml", "xl/sharedStrings.xml", "xl/theme/", "xl/worksheets/sheet")  # fmt: skip


def inspect(argument: dict[str, Any]) -> dict[str, Any]:
    """`{"path"}` to `{"sheets", "extras"}`, or to `{"problem": text}` if it is no sound workbook.

    sheets: `[[name, {"A1": ["s", "plum"]}]]` in order, types n, s, b, f (formula), e (error), x (anything else); empty
    cells are left out. extras: what a plain workbook does not have.
    """
    try:
        problem = _oversized(argument["path"])
        if problem:
            return {"problem": problem}
        with open(argument["path"], "rb") as file:  # openpyxl leaves a damaged file open that it opened itself
            book = load_workbook(file)
        contents = [[sheet.title, _cells(sheet)] for sheet in book.worksheets]
        extras = _extras(argument["path"], book)
    except Exception as error:  # zipfile, expat and openpyxl raise whatever the damage happens to cause
        return {"problem": f"not a readable workbook: {type(error).__name__}"}
    if sum(len(held) for _, held in contents) > MAX_CELLS:
        return {"problem": f"over {MAX_CELLS} cells"}
    return {"sheets": contents, "extras": extras}


def _oversized(path: str) -> str:
    """Why the archive must not be unpacked; "" if it may. zipfile never yields more than the size it declares."""
    with zipfile.ZipFile(path) as archive:
        parts = archive.infolist()
    if len(parts) > MAX_PARTS:
        return f"{len(parts)} parts"
    size = sum(part.file_size for part in parts)
    return f"{size} bytes unpacked" if size > MAX_BYTES else ""


def _cells(sheet: Any) -> dict[str, list[Any]]:
    """Cells that hold something. `_cells` of openpyxl has only those in the file, however far apart they lie."""
    held: dict[str, list[Any]] = {}
    for cell in sheet._cells.values():
        if isinstance(cell, Cell) and cell.value is not None:
            value = cell.value
            plain = isinstance(value, str | int | float)
            held[cell.coordinate] = [cell.data_type, value] if plain else ["x", type(value).__name__]
    return held


def _extras(path: str, book: Workbook) -> list[str]:
    """Parts and features that no task's workbook starts with and no tool makes."""
    with zipfile.ZipFile(path) as archive:
        extras = [f"part {name[:60]}" for name in archive.namelist() if not name.startswith(_KNOWN)]
    extras += [f"name {name[:60]}" for name in book.defined_names]
    if len(book.sheetnames) != len(book.worksheets):
        extras.append("chart sheet")
    for sheet in book.worksheets:
        features = {
            "hidden": sheet.sheet_state != "visible",
            "name": bool(sheet.defined_names),
            "merged": bool(sheet.merged_cells.ranges),
            "validation": bool(sheet.data_validations.dataValidation),
            "conditional": bool(list(sheet.conditional_formatting)),
            "table": bool(sheet.tables),
            "filter": bool(sheet.auto_filter.ref),
            "hidden row": any(row.hidden for row in sheet.row_dimensions.values()),
            "hidden column": any(column.hidden for column in sheet.column_dimensions.values()),
        }
        extras += [f"{name} in {sheet.title[:40]}" for name, present in features.items() if present]
    return extras
