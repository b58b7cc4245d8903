"""The .xlsx file of a task's sheets, as bytes."""

from __future__ import annotations

import io
import json
from collections.abc import Mapping
from functools import lru_cache

from openpyxl import Workbook

from k3rl.environments.office.formula import Value


def build(sheets: Mapping[str, Mapping[str, Value]]) -> bytes:
    """A real workbook with these contents by sheet and coordinate. Groups share a task: the last ones are kept."""
    return _built(json.dumps(sheets))


@lru_cache(maxsize=64)
def _built(text: str) -> bytes:
    book = Workbook()
    book.remove(book.worksheets[0])
    for name, contents in json.loads(text).items():
        sheet = book.create_sheet(name)
        for where, value in contents.items():
            sheet[where] = value
    file = io.BytesIO()
    book.save(file)
    return file.getvalue()
