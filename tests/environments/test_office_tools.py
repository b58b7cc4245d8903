"""The agent's two tools as plain functions on a real file, and A1 references against openpyxl's own."""

from __future__ import annotations

import tempfile
from pathlib import Path
from unittest import mock

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from openpyxl import load_workbook
from openpyxl.utils import get_column_letter, range_boundaries

from k3rl.environments.office.sheet_jobs import cells, tools
from k3rl.environments.office.sheet_jobs.inspection import inspect
from k3rl.environments.office.sheet_jobs.recalculate import Recalculation
from k3rl.environments.office.workbook import build

SHEETS = {"lime": {"A1": "fig", "B1": "oak", "A2": "plum", "B2": 7}, "jade": {"A1": "kiwi", "B3": 2.5}}


@pytest.fixture
def path(tmp_path: Path) -> str:
    place = tmp_path / "book.xlsx"
    place.write_bytes(build(SHEETS))
    return str(place)


def do(tool: str, path: str, *, fresh: bool = True, **arguments: str) -> dict[str, str]:
    return getattr(tools, tool)({"path": path, "fresh": fresh, **arguments})


@pytest.mark.parametrize(
    ("where", "text"),
    [
        ("lime", "A1: fig | B1: oak\nA2: plum | B2: 7"),
        ("B2", "B2: 7"),
        ("B2:A1", "A1: fig | B1: oak\nA2: plum | B2: 7"),
        ("jade!A1:B3", "A1: kiwi | B1: -\nA2: - | B2: -\nA3: - | B3: 2.5"),
        ("'JADE'!$B$3", "B3: 2.5"),
        ("C9", "C9: -"),
    ],
)
def test_read(path: str, where: str, text: str) -> None:
    assert do("read", path, range=where) == {"text": text}


@pytest.mark.parametrize(
    ("typed", "held", "kind", "shown"),
    [
        ("9", 9, "n", "9"),
        ("-2.5", -2.5, "n", "-2.5"),
        ("pear", "pear", "s", "pear"),
        ("=SUM(B1:B2)", "=SUM(B1:B2)", "f", "=SUM(B1:B2)"),
        ("'=SUM(B1:B2)", "=SUM(B1:B2)", "s", "'=SUM(B1:B2)"),
        ("'9", "9", "s", "9"),
        ("1e5", "1e5", "s", "1e5"),
        ("two\nlines", "two\nlines", "s", "two\\nlines"),
        ("", None, "n", "-"),
    ],
)
def test_write(path: str, typed: str, held: object, kind: str, shown: str) -> None:
    assert do("write", path, cell="jade!A1", value=typed) == {"text": "ok"}
    tools.save({"path": path})
    cell = load_workbook(path)["jade"]["A1"]
    assert (cell.value, cell.data_type) == (held, kind)
    assert do("read", path, range="jade!A1") == {"text": f"A1: {shown}"}
    assert load_workbook(path)["lime"]["B2"].value == 7
    do("write", path, cell="B2", value="8")
    tools.save({"path": path})  # the first sheet; what was written before survives
    assert (load_workbook(path)["jade"]["A1"].value, load_workbook(path)["lime"]["B2"].value) == (held, 8)


VALUES = [
    "7",
    "2.0",
    "-3.50",
    "1e5",
    "=A1+1",
    "'=A1",
    "'9",
    "'",
    "",
    "a\r\nb",
    " x ",
    "#N/A",
    "_x0041_",
    "a\x07",
    "\ud800",
]
PLACES = ["A1", "B2", "C5", "jade!B3", "jade!D7", "Z99", "lime", "A1:B2", "ZZ1"]
CALLS = st.one_of(
    st.tuples(st.just("read"), st.sampled_from(["lime", "jade!A1:D9", "B2", "nowhere!A1"]), st.none()),
    st.tuples(st.just("write"), st.sampled_from(PLACES), st.sampled_from(VALUES)),
)


@settings(max_examples=40, deadline=None)
@given(st.lists(CALLS, max_size=8))
def test_a_kept_workbook_shows_what_the_file_holds(calls: list[tuple[str, str, str | None]]) -> None:
    """Whatever was done before: the same answers, and the same file, as with a load before every call."""
    with tempfile.TemporaryDirectory() as folder:
        paths = [f"{folder}/kept.xlsx", f"{folder}/loaded.xlsx"]
        for path in paths:
            Path(path).write_bytes(build(SHEETS))
        kept, loaded = tools._Open(), tools._Open()
        for tool, place, value in calls:
            arguments = {"range": place} if value is None else {"cell": place, "value": value}
            answers = []
            for path, state, fresh in zip(paths, (kept, loaded), (False, True), strict=True):
                with mock.patch.object(tools, "_open", state):
                    answers.append(do(tool, path, fresh=fresh, **arguments))
                    if fresh:
                        tools.save({"path": path})
            assert answers[0] == answers[1]
        with mock.patch.object(tools, "_open", kept):
            tools.save({"path": paths[0]})
        assert inspect({"path": paths[0]}) == inspect({"path": paths[1]})


def test_what_a_file_could_not_give_back_is_refused(path: str) -> None:
    for value in ("a\x07", "\ud800", "\udfff", "\uffff"):
        assert do("write", path, cell="A1", value=value) == {"error": "the value holds a control character"}
    assert do("read", path, range="A1") == {"text": "A1: fig"}


def test_long_text_is_cut(path: str) -> None:
    for row in range(1, 25):
        do("write", path, fresh=row == 1, cell=f"C{row}", value="x" * 200)
    tools.save({"path": path})
    text = do("read", path, range="lime")["text"]
    assert len(text) < 2100
    assert text.endswith("read a smaller range")


@given(st.integers(1, 16384), st.integers(1, 1048576))
def test_references_agree_with_openpyxl(column: int, row: int) -> None:
    where = f"{get_column_letter(column)}{row}"
    assert cells.coordinate(row, column) == where
    assert cells.cell(where.lower()) == (row, column)
    left, top, right, bottom = range_boundaries(f"A1:{where}")
    assert cells.area(f"{where}:A1") == (top, left, bottom, right)


@pytest.mark.parametrize(
    "text", ["", "A", "1", "A0", "XFE1", "A1048577", "A1:", ":A1", "A1:B2:C3", "R1C1", "A-1", "Ä1"]
)
def test_no_reference(text: str) -> None:
    assert cells.area(text) is None


def test_sheets_and_ranges() -> None:
    assert cells.split("'my ''old'' sheet'!A1") == ("my 'old' sheet", "A1")
    assert cells.expand("lime!A1:B2") == ["lime!A1", "lime!B1", "lime!A2", "lime!B2"]


@pytest.mark.parametrize(
    ("formula", "result"),
    [
        ("=A1*2", 6.0),
        ("=SUM(A:A)", 7.0),
        ("=SUM(2:2)", 4.0),
        ("=C1+1", 8.0),  # a formula cell below it
        ("=jade!A1&B1", "kiwifig"),
        ("=A9", None),
        ("=A1=3", True),
        ("=1/0", {"error": "#DIV/0!"}),
        ("=D1", {"error": "circular reference"}),
        ("=SUM(A1:Z9)", {"error": "circular reference"}),
        ("=A1:A2", {"error": "#SPILL! (2 values)"}),
        ("=SUM(1:1)", {"error": "circular reference"}),
    ],
)
def test_recalculation(formula: str, result: object) -> None:
    lime = {"A1": ["n", 1], "A2": ["n", 4], "B1": ["s", "fig"], "C1": ["f", "=A1+A2"], "D1": ["f", formula]}
    sheets = {"lime": lime, "jade": {"A1": ["s", "kiwi"]}}
    assert Recalculation(sheets).value("lime!D1", {"lime!A1": 3}) == result


def test_what_has_no_value_is_an_error() -> None:
    for text in (
        "=SUM(",
        "=nonsense(1)",
        "=[1]lime!A1",
        "=lemon!A1",
        "=fig",
        "=",
        "=A1:B2:C3(",
        "=" + "(" * 500,
        "=10^400",
    ):
        found = Recalculation({"lime": {"A1": ["n", 1], "D1": ["f", text]}}).value("lime!D1", {})
        assert isinstance(found, dict), text
