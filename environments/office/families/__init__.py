"""Task families by name. TRAINED ones are in every split but the last, HELDOUT ones in test_heldout alone."""

from k3rl.environments.office.families.calculations import aggregate, conditional, rowwise
from k3rl.environments.office.families.entries import copy, enter, lookup, replace
from k3rl.environments.office.families.joins import join
from k3rl.environments.office.families.unseen import clear, swap
from k3rl.environments.office.plan import Family

TRAINED: dict[str, Family] = {
    "enter": enter,
    "replace": replace,
    "copy": copy,
    "lookup": lookup,
    "aggregate": aggregate,
    "conditional": conditional,
    "rowwise": rowwise,
    "join": join,
}
HELDOUT: dict[str, Family] = {"swap": swap, "clear": clear}
