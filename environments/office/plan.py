"""One office task as data: the prompt, the workbook, what must come of it, and what to read on the way."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from k3rl.environments.office.formula import Formula, Value
from k3rl.environments.office.tables import Draw, Table


@dataclass(frozen=True, kw_only=True, slots=True)
class Plan:
    """References are full ("plum!B3"); all other cells must stay as they are.

    sheets: contents by sheet and coordinate. reads: ranges a reference solution looks at first. literals: cells that
    must hold exactly this ("" : nothing). formulas: cells that must compute this on any inputs. answer: what the final
    message must say; None where the workbook is all that counts.
    """

    prompt: str
    sheets: Mapping[str, Mapping[str, Value]]
    reads: tuple[str, ...] = ()
    literals: Mapping[str, Value] = field(default_factory=dict)
    formulas: Mapping[str, Formula] = field(default_factory=dict)
    answer: Value | None = None

    def to_json(self) -> dict[str, Any]:
        """Plain data for the task's payload; the prompt stands in the task's messages."""
        return {
            "sheets": {name: dict(contents) for name, contents in self.sheets.items()},
            "reads": list(self.reads),
            "literals": dict(self.literals),
            "formulas": {where: formula.to_json() for where, formula in self.formulas.items()},
            "answer": self.answer,
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any], prompt: str = "") -> Plan:
        """The inverse of `to_json`."""
        formulas = {where: Formula.from_json(formula) for where, formula in data["formulas"].items()}
        return cls(
            prompt=prompt,
            sheets=data["sheets"],
            reads=tuple(data["reads"]),
            literals=data["literals"],
            formulas=formulas,
            answer=data["answer"],
        )

    def brief(self, reference: str) -> str:
        """A full reference as the agent may write it: without the sheet where there is only one."""
        return reference if len(self.sheets) > 1 else reference.rpartition("!")[2]


Family: TypeAlias = Callable[[Draw, int], Plan]
"""Makes the plan of one task from its draws and its level (1 to 5)."""


def sheets(*tables: Table) -> dict[str, dict[str, Value]]:
    """The workbook of these tables, in this order."""
    return {table.sheet: table.contents() for table in tables}


def bare(reference: str) -> str:
    """ "plum!B3" as "B3"."""
    return reference.rpartition("!")[2]
