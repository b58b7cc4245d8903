"""The families of terminal tasks by name."""

from __future__ import annotations

from k3rl.environments.terminal.families.archives import archives
from k3rl.environments.terminal.families.builds import builds
from k3rl.environments.terminal.families.columns import columns
from k3rl.environments.terminal.families.counts import counts
from k3rl.environments.terminal.families.json_values import json_values
from k3rl.environments.terminal.families.links import links
from k3rl.environments.terminal.families.move import move
from k3rl.environments.terminal.families.permissions import permissions
from k3rl.environments.terminal.families.repositories import repositories
from k3rl.environments.terminal.families.scripts import scripts
from k3rl.environments.terminal.families.search import search
from k3rl.environments.terminal.families.settings import settings
from k3rl.environments.terminal.puzzle import Family

TRAINED: dict[str, Family] = {
    "move": move,
    "search": search,
    "columns": columns,
    "permissions": permissions,
    "json": json_values,
    "archives": archives,
    "settings": settings,
    "scripts": scripts,
    "builds": builds,
    "repositories": repositories,
}
HELDOUT: dict[str, Family] = {"links": links, "counts": counts}
