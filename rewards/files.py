"""Rewards for the state of files: what should be there, what it should hold, and that nothing else was touched.

Contents, in what is expected and in what is found: a text; bytes (no text); {"link": target}; {"tar": {member: text}}
for an archive that was unpacked elsewhere; and, expected only, {"json": value} (equal as JSON) and {"any": true}.
Folders are paths that end in "/"; those above an expected path are expected too.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass

from k3rl.types import Json


@dataclass(frozen=True, kw_only=True, slots=True)
class Difference:
    """Paths by what is wrong with them, each sorted."""

    missing: tuple[str, ...]
    wrong: tuple[str, ...]
    extra: tuple[str, ...]

    def parts(self) -> dict[str, float]:
        """1 where nothing is missing, wrong, or too much."""
        return {
            "present": float(not self.missing),
            "contents": float(not self.wrong),
            "nothing_else": float(not self.extra),
        }


def difference(expected: Mapping[str, Json], found: Mapping[str, Json]) -> Difference:
    """How a found tree differs from the expected one. Example: `difference({"a": "x\\n"}, {}).missing == ("a",)`."""
    whole = dict.fromkeys(_parents(expected)) | dict(expected)
    both = [path for path in whole if path in found and not path.endswith("/")]
    return Difference(
        missing=tuple(sorted(path for path in whole if path not in found)),
        wrong=tuple(sorted(path for path in both if not same(whole[path], found[path]))),
        extra=tuple(sorted(path for path in found if path not in whole)),
    )


def same(expected: Json, found: Json) -> bool:
    """Whether one path holds what it should."""
    if isinstance(expected, Mapping) and "any" in expected:
        return isinstance(found, str)
    if isinstance(expected, Mapping) and "json" in expected:
        try:
            return isinstance(found, str) and bool(json.loads(found) == expected["json"])
        except (ValueError, RecursionError):
            return False
    return bool(expected == found)


def same_modes(expected: Mapping[str, int], found: Mapping[str, int]) -> float:
    """1 if every path named has exactly this mode."""
    return float(all(found.get(path) == mode for path, mode in expected.items()))


def _parents(paths: Mapping[str, Json]) -> set[str]:
    """Folders above these paths, each with its "/"."""
    return {path[: end + 1] for path in paths for end, letter in enumerate(path) if letter == "/"}
