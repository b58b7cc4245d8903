"""What is told of progress, off a terminal and on one."""

import io

import pytest
from rich.console import Console

from k3rl.observability import progress
from k3rl.observability.progress import Bar, waiting


@pytest.fixture
def clock(monkeypatch):
    """Seconds as the bar sees them: set by the test."""
    now = [0.0]
    monkeypatch.setattr(progress.time, "monotonic", lambda: now[0])
    return now


def plain():
    return Console(file=io.StringIO(), width=120)


def test_lines_come_now_and_then_and_at_the_end(clock):
    console = plain()
    with Bar("eating", 5, console=console) as bar:
        for second in (10, 21, 30, 41, 42):
            clock[0] = second
            bar.advance(note="nice")
    assert console.file.getvalue().splitlines() == [
        "eating: 2/5 after 21 s  nice",
        "eating: 4/5 after 41 s  nice",
        "eating: 5/5 after 42 s  nice",
    ]


def test_what_is_short_needs_no_line(clock):
    console = plain()
    with Bar("eating", 2, console=console) as bar:
        clock[0] = 1.9
        bar.advance(2)
    assert console.file.getvalue() == ""


def test_a_total_may_be_unknown_at_first_and_change(clock):
    console = plain()
    with Bar("training", None, done=3, console=console) as bar:
        clock[0] = 25
        bar.advance()
        clock[0] = 50
        bar.advance(total=9)
        clock[0] = 75
        bar.advance(total=6)
    assert [line.split()[1] for line in console.file.getvalue().splitlines()] == ["4/?", "5/9", "6/6"]


def test_waiting_is_told_only_where_it_lasts():
    console = plain()
    with waiting("loading", after=60, console=console):
        pass
    assert console.file.getvalue() == ""
    said = io.StringIO()
    with waiting("loading", after=0, console=Console(file=said, width=120)):
        while not said.getvalue():
            pass
    assert said.getvalue() == "loading ...\n"


def test_waiting_on_a_terminal_shows_a_clock():
    said = io.StringIO()
    with waiting("loading", after=0, console=Console(file=said, width=120, force_terminal=True)):
        while "loading" not in said.getvalue():
            pass
    assert "0:00:0" in said.getvalue()
