"""Values of formula cells on changed inputs: formulas are compiled by the library `formulas`, cells resolved here.

Only the cell asked for and what it leans on is computed, so that a judge can ask for a dozen input sets in a few
milliseconds. External references, cycles and unknown functions are errors, as they are in a spreadsheet.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

import numpy as np
from formulas import Parser
from formulas.functions import XlError
from schedula import EMPTY

from . import cells

Plain: TypeAlias = str | int | float | bool | dict[str, str] | None
"""A cell's value; `{"error": "#DIV/0!"}` for an error."""

MAX_DEPTH = 24  # formula cells leaning on each other

logging.getLogger("schedula").setLevel(logging.CRITICAL)  # it logs every formula that fails, with a traceback


def recalculate(argument: dict[str, Any]) -> list[list[Plain]]:
    """`{"sheets": [[name, contents]], "queries": [{"cell": "plum!B6", "sets": [{"plum!B2": 7}]}]}` to one list per
    query: the cell's value for each set of inputs. Sheets are as inspection.py gives them."""
    recalculation = Recalculation(dict(argument["sheets"]))
    return [[recalculation.value(query["cell"], inputs) for inputs in query["sets"]] for query in argument["queries"]]


class Recalculation:
    """`Recalculation({"plum": {"A1": ["n", 7], "A2": ["f", "=A1*2"]}}).value("plum!A2", {"plum!A1": 3})` is 6.0."""

    def __init__(self, sheets: Mapping[str, Mapping[str, list[Any]]]) -> None:
        self._names = {name.casefold(): name for name in sheets}
        self._cells = {f"{name}!{where}": held for name, contents in sheets.items() for where, held in contents.items()}
        self._extent = {name: _extent(contents) for name, contents in sheets.items()}
        self._compiled: dict[str, tuple[Callable[..., Any], list[str]]] = {}

    def value(self, reference: str, inputs: Mapping[str, Plain]) -> Plain:
        """The value of one cell ("sheet!B3") where `inputs` stand in place of what those cells hold."""
        sheet, where = cells.split(reference)
        try:
            return _plain(self._resolve(f"{sheet}!{where}", inputs, ()))
        except _Failed as error:
            return {"error": str(error)}

    def _resolve(self, reference: str, inputs: Mapping[str, Plain], above: tuple[str, ...]) -> Any:
        if reference in inputs:
            return inputs[reference]
        kind, held = self._cells.get(reference, ("n", EMPTY))
        if kind in ("e", "x"):
            raise _Failed(str(held))
        if kind != "f":
            return held
        if reference in above or len(above) >= MAX_DEPTH:
            raise _Failed("circular reference")
        function, needs = self._compile(held)
        home = cells.split(reference)[0]
        arguments = [self._area(need, home, inputs, (*above, reference)) for need in needs]
        try:
            return function(*arguments)
        except Exception as error:  # the library raises whatever the arguments happen to cause
            raise _Failed(f"#VALUE! ({type(error).__name__})") from error

    def _compile(self, text: str) -> tuple[Callable[..., Any], list[str]]:
        if text not in self._compiled:
            if "[" in text:
                raise _Failed("#REF! (external reference)")
            try:
                function = Parser().ast(text)[1].compile()
            except Exception as error:  # or whatever the text does
                raise _Failed(f"#NAME? ({type(error).__name__})") from error
            self._compiled[text] = function, list(function.inputs)
        return self._compiled[text]

    def _area(self, need: str, home: str, inputs: Mapping[str, Plain], above: tuple[str, ...]) -> Any:
        """The values of a reference as the library wants them: an object array of rows."""
        sheet, rest = cells.split(need)
        name = self._names.get(sheet.casefold()) if sheet else home
        box = cells.area(rest) or self._whole(rest, name or "")
        if name is None or box is None:
            raise _Failed(f"#REF! ({need[:40]})")
        rows = min(box[2], max(self._extent[name][0], box[0]))  # what lies beyond the used area is empty
        columns = min(box[3], max(self._extent[name][1], box[1]))
        return np.array(
            [
                [self._element(f"{name}!{cells.coordinate(r, c)}", inputs, above) for c in range(box[1], columns + 1)]
                for r in range(box[0], rows + 1)
            ],
            dtype=object,
        )

    def _element(self, reference: str, inputs: Mapping[str, Plain], above: tuple[str, ...]) -> Any:
        value = self._resolve(reference, inputs, above)
        return value if value is EMPTY else _single(value)

    def _whole(self, rest: str, name: str) -> tuple[int, int, int, int] | None:
        """The used part of "B:B" or "2:2"."""
        first, _, last = rest.replace("$", "").partition(":")
        rows, columns = self._extent.get(name, (1, 1))
        if first.isalpha() and last.isalpha() and max(len(first), len(last)) <= 3:
            return 1, cells.number(first), rows, cells.number(last)
        if first.isdigit() and last.isdigit() and max(len(first), len(last)) <= 7:
            return int(first), 1, int(last), columns
        return None


class _Failed(Exception):
    """The formula has no value; the text says why."""


def _extent(contents: Mapping[str, Any]) -> tuple[int, int]:
    """The last used row and column."""
    found = [place for place in map(cells.cell, contents) if place]
    return max((row for row, _ in found), default=1), max((column for _, column in found), default=1)


def _single(value: Any) -> Any:
    """The one value of a 1 x 1 result. A larger one would spill over other cells: refused."""
    array = np.asarray(value, dtype=object)
    if array.size != 1:
        raise _Failed(f"#SPILL! ({array.size} values)")
    element = array.reshape(-1)[0]
    if isinstance(element, XlError):
        raise _Failed(str(element))
    return element


def _plain(value: Any) -> Plain:
    element = _single(value)
    if element is EMPTY or element is None:
        return None
    if isinstance(element, bool | np.bool_):
        return bool(element)
    if isinstance(element, int | float | np.integer | np.floating):
        number = float(element)
        return number if math.isfinite(number) else {"error": "#NUM!"}
    return str(element)[:1000]


def warm() -> None:
    """Load what the library loads at first use, so that forked jobs find it done. Fails if it computes wrongly."""
    sheet = {
        "A1": ["n", 1],
        "B1": ["s", "a"],
        "C1": ["f", '=SUM(A1:B1)+COUNTIF(A:A,">1")+SUMIF(B1:B1,"a",A1:A1)'],
        "D1": ["f", "=VLOOKUP(A1,A1:B1,2,FALSE)&AVERAGE(A1,C1)&IF(MAX(A1)>MIN(C1),1,INDEX(A1:B1,1,2))"],
    }
    found = Recalculation({"a": sheet}).value("a!D1", {})
    if found != "a1.5a":  # 1 & average of 1 and 2 & the text in B1
        raise ImportError(f"the library formulas computes {found!r} where a1.5a is right")


warm()
