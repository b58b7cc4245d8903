"""Is a free-text answer right? Numbers with scales, percent signs and units; names; a hedged answer is wrong.

One claim counts. "543 million" is 543000000, "12%" is 0.12, "(1,200)" is -1200; "7 or 8", "between 6 and 8", "not 7"
and a list of candidates are wrong, whatever they contain.
"""

from __future__ import annotations

import math
import re
import unicodedata
from collections.abc import Collection
from dataclasses import dataclass

_SCALES = {
    "k": 1e3, "thousand": 1e3,
    "m": 1e6, "mn": 1e6, "million": 1e6, "millions": 1e6,
    "b": 1e9, "bn": 1e9, "billion": 1e9, "billions": 1e9,
    "t": 1e12, "tn": 1e12, "trillion": 1e12, "trillions": 1e12,
}  # fmt: skip
_SHORT_UPPER = frozenset("MBT")  # one letter scales only in upper case: "5 m" are metres, "5M" are millions
_NUMBER = re.compile(
    r"""(?<![\w.])(?P<open>\()?\s*(?P<sign>[-+])?\s*(?:[$€£¥]\s*)?(?P<sign2>[-+])?
        (?P<digits>\d{1,3}(?:,\d{3})+(?:\.\d+)?|\d+(?:\.\d+)?|\.\d+)
        (?P<exponent>[eE][-+]?\d{1,3})?(?![\d.]*\d)
        \s*(?P<word>%|[^\W\d_]+)?""",
    re.VERBOSE,
)
_HEDGE = re.compile(
    r"\b(?:or|either|neither|nor|not|cannot|never|maybe|perhaps|possibly|probably|between|versus|vs|unless|unsure"
    r"|alternatively|respectively)\b|n't\b",
    re.IGNORECASE,
)
_MARKER = re.compile(r"\banswer\s*(?::|=|\bis\b)", re.IGNORECASE)
_CLAIM = re.compile(r"(?P<head>[^.;,:=?!\n]*?)(?:\bis\b|:|=)\s*(?P<tail>.+)", re.IGNORECASE | re.DOTALL)
_QUOTES = "\"'`*_“”‘’ \t\r\n"


@dataclass(frozen=True, kw_only=True, slots=True)
class Mention:
    """One number in a text: `Mention(value=0.12, unit="%")` for "12%". `unit` is "" where none follows."""

    value: float
    unit: str


def numbers_in(text: str) -> tuple[Mention, ...]:
    """All numbers of `text` in order, scales ("million", "bn", "k") and percent applied to the value."""
    return tuple(_mention(m) for m in _NUMBER.finditer(_plain(text)))


def number_is(text: str, expected: float, *, unit: str = "", relative: float = 1e-9, absolute: float = 1e-9) -> bool:
    """Whether `text` claims one number, and that one, within the tolerances.

    A unit in the text must be `unit` where one is asked for; a missing one is forgiven. Saying the same value twice is
    one claim.
    """
    decisive = _decisive(text)
    if _HEDGE.search(decisive):
        return False
    mentions = numbers_in(decisive)
    if not mentions or any(m.value != mentions[0].value for m in mentions):
        return False
    if unit and any(m.unit and m.unit.casefold() != unit.casefold() for m in mentions):
        return False
    return math.isclose(mentions[0].value, expected, rel_tol=relative, abs_tol=absolute)


def text_is(text: str, expected: str) -> bool:
    """Whether `text` is `expected`, alone or as one plain claim ("The colour of plum is jade."); case is ignored."""
    decisive = _decisive(text)
    if _canonical(decisive) == _canonical(expected):
        return True
    if _HEDGE.search(decisive):
        return False
    claim = _CLAIM.fullmatch(decisive)
    if claim is None or re.search(r"\band\b", claim["head"], re.IGNORECASE):
        return False
    return _canonical(claim["tail"]) == _canonical(expected)


def answer_is(text: str, expected: str | float, *, rivals: Collection[str] = ()) -> bool:
    """`text_is` for a string, `number_is` for a number; wrong if it also names one of `rivals`, other candidates."""
    words = set(re.findall(r"\w+", _canonical(text)))
    if any(_canonical(rival) in words for rival in rivals):
        return False
    return text_is(text, expected) if isinstance(expected, str) else number_is(text, float(expected))


def _plain(text: str) -> str:
    return unicodedata.normalize("NFKC", text).replace("−", "-").replace("–", "-").replace("—", "-")


def _decisive(text: str) -> str:
    """What follows "answer:"; the whole text without one; nothing where it stands twice, which is two answers."""
    plain = _plain(text).strip(_QUOTES)
    markers = list(_MARKER.finditer(plain))
    if len(markers) > 1:
        return ""
    return plain[markers[0].end() :].strip(_QUOTES) if markers else plain


def _canonical(text: str) -> str:
    return " ".join(_plain(text).casefold().strip(_QUOTES).rstrip(".!").strip(_QUOTES).split())


def _mention(match: re.Match[str]) -> Mention:
    value = float(match["digits"].replace(",", "") + (match["exponent"] or ""))
    word = match["word"] or ""
    scale = _SCALES.get(word.lower(), 0.0)
    if len(word) == 1 and word.lower() != "k" and word not in _SHORT_UPPER:
        scale = 0.0
    if word == "%" or word.lower() == "percent":
        value, word = value / 100, "%"
    elif scale:
        value, word = value * scale, ""
    closed = match["open"] and match.string[match.end() :].lstrip().startswith(")")
    negative = "-" in (match["sign"] or "") + (match["sign2"] or "")
    return Mention(value=-value if negative or closed else value, unit=word)
