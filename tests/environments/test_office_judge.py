"""The judge of office files, in this process: formulas by meaning, files that are not what they seem."""

from __future__ import annotations

import random
import re
import signal
import tempfile
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from office_episodes import judge
from openpyxl import Workbook, load_workbook
from openpyxl.workbook.defined_name import DefinedName

from k3rl.environments.office.families import HELDOUT, TRAINED
from k3rl.environments.office.formula import Formula, hidden, spell, value
from k3rl.environments.office.plan import Plan
from k3rl.environments.office.sheet_jobs import cells
from k3rl.environments.office.sheet_jobs.inspection import inspect
from k3rl.environments.office.sheet_jobs.recalculate import recalculate
from k3rl.environments.office.tables import Draw
from k3rl.environments.office.workbook import build
from k3rl.rewards.sheets import same_value

SHEET = {"A1": "fig", "B1": "oak", "A2": "plum", "B2": 7, "A3": "kiwi", "B3": 3, "A4": "plum", "B4": 5, "D1": "kiwi"}
SUM = Formula(op="SUM", args=("lime!B2:B4",))


def saved(tmp_path: Path, plan: Plan, **written: object) -> str:
    """The plan's workbook with these cells of its first sheet changed."""
    path = tmp_path / "book.xlsx"
    path.write_bytes(build(plan.sheets))
    book = load_workbook(path)
    for where, held in written.items():
        book.worksheets[0][where] = held
    book.save(path)
    return str(path)


def plan_for(formula: Formula) -> Plan:
    return Plan(prompt="", sheets={"lime": SHEET}, formulas={"lime!D9": formula})


CORRECT = {
    SUM: ["=SUM(B2:B4)", "=B2+B3+B4", "=sum(lime!B2:B4)", "=SUM(B:B)", "=SUM($B$2:$B$4)", "=SUMPRODUCT(B2:B4)"],
    Formula(op="MAX", args=("lime!B2:B4",)): ["=MAX(B2:B4)", "=LARGE(B2:B4,1)", "=MAX(B2,B3,B4)"],
    Formula(op="AVERAGE", args=("lime!B2:B4",)): ["=AVERAGE(B2:B4)", "=SUM(B2:B4)/COUNT(B2:B4)", "=SUM(B2:B4)/3"],
    Formula(op="COUNTIF", args=("lime!A2:A4",), test=("=", "plum")): [
        '=COUNTIF(A2:A4,"plum")', '=SUMPRODUCT((A2:A4="plum")*1)', '=COUNTIFS(A2:A4,"plum")',
    ],
    Formula(op="COUNTIF", args=("lime!B2:B4",), test=(">", 5)): ['=COUNTIF(B2:B4,">5")', '=COUNTIF(B2:B4,">"&5)'],
    Formula(op="SUMIF", args=("lime!A2:A4", "lime!B2:B4"), test=("=", "plum")): [
        '=SUMIF(A2:A4,"plum",B2:B4)', '=SUMIFS(B2:B4,A2:A4,"plum")',
    ],
    Formula(op="-", args=("lime!B2", "lime!B3")): ["=B2-B3", "=-B3+B2", "=SUM(B2,-B3)"],
    Formula(op="VLOOKUP", args=("lime!D1", "lime!A2:B4"), column=2): [
        "=VLOOKUP(D1,A2:B4,2,FALSE)", "=INDEX(B2:B4,MATCH(D1,A2:A4,0))", "=XLOOKUP(D1,A2:A4,B2:B4)",
    ],
}  # fmt: skip
WRONG = {
    SUM: ["=15", "15", 15, "=SUM(B2:B3)", "=SUM(B3:B4)", "=MAX(B2:B4)", "=SUM(B2:B4)+0.001", "=SUM(C2:C4)", "=D9",
          "=SUM(A1:Z99)", "=[1]lime!B2", "=SUM(lemon!B2:B4)", "=IF(B2=7,15,0)", "=B2:B4", "=SUM(B2:B4", "=nonsense()",
          "='c:\\[x.xlsx]lime'!B2", "=ABS(B2)+ABS(B3)+ABS(B4)"],
    Formula(op="MAX", args=("lime!B2:B4",)): ["=MAX(B2:B3)", "=MAX(B3:B4)", "=B2", "=MIN(B2:B4)", "=MAX(B2:B4,0)"],
    Formula(op="MIN", args=("lime!B2:B4",)): ["=MIN(B2:B3)", "=MIN(B3:B4)", "=B3", "=MIN(B2:B4,3)"],
    Formula(op="AVERAGE", args=("lime!B2:B4",)): ["=AVERAGE(B2:B3)", "=MEDIAN(B2:B4)", "=SUM(B2:B4)"],
    Formula(op="COUNTIF", args=("lime!A2:A4",), test=("=", "plum")): [
        '=COUNTIF(A2:A3,"plum")', '=COUNTIF(A3:A4,"plum")+1', '=COUNTIF(A2:A4,"plum*")', "=COUNTA(A2:A4)", "=2",
    ],
    Formula(op="COUNTIF", args=("lime!B2:B4",), test=(">", 5)): [
        '=COUNTIF(B2:B4,">=5")', '=COUNTIF(B2:B4,">6")', '=COUNTIF(B2:B3,">5")', "=1", '=COUNTIF(B2:B4,"<5")',
    ],
    Formula(op="SUMIF", args=("lime!A2:A4", "lime!B2:B4"), test=("=", "plum")): [
        '=SUMIF(A2:A3,"plum",B2:B3)', "=B2+B4", '=SUMIF(A2:A4,"kiwi",B2:B4)', "=12", "=SUM(B2:B4)-B3",
    ],
    Formula(op="-", args=("lime!B2", "lime!B3")): ["=B3-B2", "=B2+B3", "=ABS(B2-B3)", "=4", "=B2-3"],
    Formula(op="VLOOKUP", args=("lime!D1", "lime!A2:B4"), column=2): [
        "=B3", "=VLOOKUP(D1,A2:B3,2,FALSE)", "=VLOOKUP(D1,A2:B4,1,FALSE)", '=VLOOKUP("kiwi",A2:B4,2,FALSE)', "=3",
        "=VLOOKUP(A2,A2:B4,2,FALSE)",
    ],
}  # fmt: skip


@pytest.mark.parametrize(("formula", "text"), [(f, text) for f, texts in CORRECT.items() for text in texts])
def test_every_correct_spelling_counts(tmp_path: Path, formula: Formula, text: str) -> None:
    plan = plan_for(formula)
    assert judge(plan, saved(tmp_path, plan, D9=text)).reward == 1.0


@pytest.mark.parametrize(("formula", "text"), [(f, text) for f, texts in WRONG.items() for text in texts])
def test_every_wrong_formula_fails(tmp_path: Path, formula: Formula, text: object) -> None:
    plan = plan_for(formula)
    assert judge(plan, saved(tmp_path, plan, D9=text)).reward == 0.0


@pytest.mark.parametrize("family", ["aggregate", "conditional", "rowwise", "join"])
def test_hidden_inputs_reach_every_input_cell(family: str) -> None:
    """Whichever single cell a formula ignores, some hidden set has another result without it."""
    for level in range(1, 6):
        plan = TRAINED[family](Draw(random.Random(f"{family}{level}")), level)
        held = {f"{sheet}!{at}": v for sheet, contents in plan.sheets.items() for at, v in contents.items()}
        for formula in plan.formulas.values():
            sets = hidden(formula, random.Random(level))
            if formula.op == "VLOOKUP":  # each row is the one found in some set
                keys = {cell for cell in cells.expand(formula.args[1]) if cells.split(cell)[1].startswith("A")}
                assert {key for inputs in sets for key in keys if inputs[key] == inputs[formula.args[0]]} == keys
                continue
            for ignored in [cell for argument in formula.args for cell in cells.expand(argument)]:
                results = [value(formula, {**held, **inputs}.__getitem__) for inputs in sets]
                stale = {ignored: held[ignored]}
                assert results != [value(formula, {**held, **inputs, **stale}.__getitem__) for inputs in sets], ignored


@pytest.mark.parametrize("family", [*TRAINED, *HELDOUT])
def test_own_solutions_pass_on_many_seeds(tmp_path: Path, family: str) -> None:
    """Our arithmetic and the library's agree on the formula that the reference solution types."""
    for index in range(25):
        plan = (TRAINED | HELDOUT)[family](Draw(random.Random(index)), 1 + index % 5)
        path = tmp_path / "book.xlsx"
        path.write_bytes(build(plan.sheets))
        assert judge(plan, str(path)).reward == 0.0
        book = load_workbook(path)
        for where, held in {
            **plan.literals,
            **{w: spell(f, w.partition("!")[0]) for w, f in plan.formulas.items()},
        }.items():
            sheet, _, at = where.partition("!")
            book[sheet][at] = None if held == "" else held
        book.save(path)
        assert judge(plan, str(path), str(plan.answer)).reward == 1.0, plan


def _hide(book: Workbook) -> None:
    book.create_sheet("extra")
    book.worksheets[0].sheet_state = "hidden"
    book.active = 1


EXTRAS: dict[str, Callable[[Workbook], object]] = {
    "hidden sheet": _hide,
    "another sheet": lambda book: book.create_sheet("extra"),
    "renamed sheet": lambda book: setattr(book.worksheets[0], "title", "other"),
    "defined name": lambda book: book.defined_names.add(DefinedName("SUM2", attr_text="lime!$B$2")),
    "merged": lambda book: book.worksheets[0].merge_cells("F1:G2"),
    "hidden row": lambda book: setattr(book.worksheets[0].row_dimensions[3], "hidden", True),
    "filter": lambda book: setattr(book.worksheets[0].auto_filter, "ref", "A1:B4"),
    "far cell": lambda book: book.worksheets[0].cell(9999, 9999, "x"),
    "chart sheet": lambda book: book.create_chartsheet("chart"),
}


@pytest.mark.parametrize("name", EXTRAS)
def test_more_than_was_asked_for_fails(tmp_path: Path, name: str) -> None:
    plan = plan_for(SUM)
    path = saved(tmp_path, plan, D9="=SUM(B2:B4)")
    assert judge(plan, path).reward == 1.0
    book = load_workbook(path)
    EXTRAS[name](book)
    book.save(path)
    assert judge(plan, path).reward == 0.0


def repacked(path: str, change: Callable[[str, bytes], bytes], extra: dict[str, bytes] | None = None) -> None:
    """Rewrite the archive part by part."""
    with zipfile.ZipFile(path) as archive:
        parts = {name: archive.read(name) for name in archive.namelist()}
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in {**parts, **(extra or {})}.items():
            archive.writestr(name, change(name, data))


def test_foreign_parts_and_entities_are_refused(tmp_path: Path) -> None:
    plan = plan_for(SUM)
    path = saved(tmp_path, plan, D9="=SUM(B2:B4)")
    repacked(path, lambda name, data: data, {"xl/vbaProject.bin": b"macro"})
    assert judge(plan, path).parts["plain"] == 0.0
    laughs = b'<!DOCTYPE x [<!ENTITY a "ha">' + b"".join(
        b'<!ENTITY %c "%s">' % (98 + i, b"&%c;" % (97 + i) * 50) for i in range(9)
    )
    path = saved(tmp_path, plan, D9="=SUM(B2:B4)")

    def swell(name: str, data: bytes) -> bytes:
        if not name.startswith("xl/worksheets/"):
            return data
        return re.sub(rb"^(<\?xml.*?\?>)?", laughs + b"]>", data, count=1).replace(b"<sheetData>", b"<sheetData>&j;")

    repacked(path, swell)
    assert judge(plan, path).reward == 0.0
    repacked(path, lambda name, data: data, {f"xl/worksheets/sheet{i}.xml": b"<x/>" for i in range(2, 90)})
    assert "parts" in inspect({"path": path})["problem"]


def test_text_is_not_a_number_or_a_formula(tmp_path: Path) -> None:
    plan = Plan(prompt="", sheets={"lime": SHEET}, literals={"lime!D9": 7, "lime!D8": ""})
    assert judge(plan, saved(tmp_path, plan, D9=7)).reward == 1.0
    for held in ("7", "=7", True, "7 "):
        path = saved(tmp_path, plan)
        book = load_workbook(path)
        book.worksheets[0]["D9"].value = held
        if held == "7":
            book.worksheets[0]["D9"].data_type = "s"
        book.save(path)
        assert judge(plan, path).reward == 0.0
    assert same_value(7, 7.0)
    assert judge(replace(plan, literals={"lime!A1": ""}), saved(tmp_path, plan)).reward == 0.0


@settings(max_examples=60, deadline=None)
@given(st.binary(max_size=40), st.integers(0, 6000), st.booleans())
def test_damaged_files_are_reported(noise: bytes, where: int, cut: bool) -> None:
    data = build({"lime": SHEET})
    where %= len(data)
    damaged = data[:where] + noise + (b"" if cut else data[where + len(noise) :])
    with tempfile.NamedTemporaryFile(suffix=".xlsx") as file:
        Path(file.name).write_bytes(damaged)
        report = inspect({"path": file.name})
    assert "problem" in report or "sheets" in report


@contextmanager
def stopped_after(seconds: float) -> Iterator[None]:
    """Raises TimeoutError in whatever runs for longer; the test's own limit, by the same timer, goes on after it."""

    def stop(*_: object) -> None:
        raise TimeoutError

    before = signal.signal(signal.SIGALRM, stop)
    left, _ = signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.signal(signal.SIGALRM, before)
        signal.setitimer(signal.ITIMER_REAL, left)


PIECES = [
    "SUM(", ")", "B2:B4", ",", "+", "-", '"', "'", "1", "A:A", "lime!A1", "{", "}", "[1]", "IF(", "@", "#REF!", "&",
    "%", "^", " ", "(", "OFFSET(", "INDIRECT(", "LET(", "LAMBDA(", ":", "!", "$", "TRUE", "=", ">", ";", "é",
]  # fmt: skip


@settings(max_examples=150, deadline=None)
@given(st.lists(st.sampled_from(PIECES), max_size=10).map("".join))
def test_any_formula_has_a_value_or_an_error(text: str) -> None:
    sheets = [["lime", {"B2": ["n", 1], "B3": ["s", "fig"], "D9": ["f", f"={text}"]}]]
    # The library's patterns take for ever on some texts; there the container's time limit ends the judge's job.
    with stopped_after(2.0):
        ((found,),) = recalculate({"sheets": sheets, "queries": [{"cell": "lime!D9", "sets": [{"lime!B4": 2}]}]})
    assert found is None or isinstance(found, str | int | float | bool | dict)
