"""One line of the report."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True, slots=True)
class Row:
    """`Row(name="oracle", value="200 of 200 solved", ok=True)`; `value` names the first failures."""

    name: str
    value: str
    ok: bool


def failures(found: list[str], of: int, what: str) -> str:
    """`what` with its count, and the first three failures."""
    if not found:
        return f"{of} {what}"
    return f"{len(found)} of {of} failed: {'; '.join(found[:3])}"[:600]
