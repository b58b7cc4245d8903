"""Answers: every line is a rule of environments.md or a cheat against one."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from k3rl.rewards.answers import answer_is, number_is, numbers_in, text_is


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("543 million", 543_000_000.0),
        ("$543M", 543e6),
        ("1.5 bn", 1.5e9),
        ("12%", 0.12),
        ("12 percent", 0.12),
        ("1,234.5", 1234.5),
        ("(1,200)", -1200.0),
        ("−7", -7.0),
        ("-$3", -3.0),
        ("$-3", -3.0),
        ("2e3", 2000.0),
        (".5", 0.5),
        ("7k", 7000.0),
        ("The answer is 42.", 42.0),
        ("Answer: 42", 42.0),
        ("From 12 rows, 5 were left. Answer: 7", 7.0),
        ("The total of plum is 7", 7.0),
        ("**7**", 7.0),
        ("7 (that is, 7.0)", 7.0),
    ],
)
def test_number_right(text: str, value: float) -> None:
    assert number_is(text, value)
    assert not number_is(text, value * 1.001 + 1)
    assert not number_is(text, -value)


@pytest.mark.parametrize(
    "text",
    ["7 or 8", "8 or 7", "7, 8", "between 6 and 8", "not 7", "it isn't 7", "6-8", "7 8 9", "maybe 7", "", "seven",
     "answer: fig answer: 7", "answer: 7\nanswer: 7",
     "answer: 7 answer: 8", "answer: 8 answer: 7", "7 million", "7%", "x7", "7.7.7", "either 7"],
)  # fmt: skip
def test_seven_is_not_claimed(text: str) -> None:
    assert not number_is(text, 7)


def test_units() -> None:
    assert number_is("5 kg", 5, unit="kg")
    assert number_is("5", 5, unit="kg")
    assert not number_is("5 g", 5, unit="kg")
    assert not number_is("5 m", 5e6)  # metres
    assert number_is("5 M", 5e6)
    assert [m.unit for m in numbers_in("5 kg and 3% of 2 million")] == ["kg", "%", ""]


def test_tolerance() -> None:
    assert number_is("3.14", 3.14159, absolute=0.005)
    assert not number_is("3.14", 3.14159)
    assert not number_is("3.1", 3.14159, relative=0.01)
    assert number_is("1e300", 1e300)


@pytest.mark.parametrize(
    "text",
    ["plum", "Plum.", ' "plum" ', "The answer is plum", "answer: plum", "The colour of fig is plum.", "**plum**"],
)
def test_name_right(text: str) -> None:
    assert text_is(text, "plum")
    assert not text_is(text, "fig")


@pytest.mark.parametrize(
    "text",
    ["plum or fig", "fig, plum", "fig plum", "plums", "not plum", "it is not plum", "it is fig, it is plum",
     "fig is it. it is plum", "it is fig and it is plum", "", "answer: fig answer: plum", "plum; fig",
     "fig: plum: fig"],
)  # fmt: skip
def test_plum_is_not_claimed(text: str) -> None:
    assert not text_is(text, "plum")


def test_rivals() -> None:
    assert answer_is("The colour of fig is plum", "plum", rivals=["kiwi"])
    assert not answer_is("kiwi, 7", 7, rivals=["kiwi"])
    assert answer_is("kiwis, 7", 7, rivals=["kiwi"])
    assert not answer_is("plum", "plum", rivals=["Plum"])


@given(st.integers(-(10**9), 10**9), st.sampled_from(["{}", "{:,}", "It is {}.", "answer: {}", "${}"]))
def test_integers_survive_formatting(value: int, form: str) -> None:
    assert answer_is(form.format(value), value)


@given(st.integers(0, 10**6), st.integers(0, 10**6))
def test_two_numbers_are_never_one_answer(left: int, right: int) -> None:
    if left != right:
        texts = [f"{left}{glue}{right}" for glue in (" ", " / ", " and ", "; ", "\n")]
        assert not any(answer_is(text, number) for text in texts for number in (left, right))


@given(st.text(max_size=80))
def test_any_text_is_judged(text: str) -> None:
    assert answer_is(text, 7) in (True, False)
    assert answer_is(text, "plum") in (True, False)
