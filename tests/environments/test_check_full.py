"""The whole check of every domain as a user runs it, with the shipped base model as the weak policy. Minutes each."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from k3rl.domains import known_domains


@pytest.mark.full
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("name", sorted(known_domains()))
def test_every_row_of_the_check_holds(name: str) -> None:
    command = [str(Path(sys.executable).with_name("k3rl")), "env", "check", name, "--json"]
    run = subprocess.run(command, capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stdout + run.stderr
    rows = {row["name"]: row for row in json.loads(run.stdout)["rows"]}
    assert all(row["ok"] for row in rows.values())
    assert all("weak policy" in rows[f"level {level}"]["value"] for level in range(1, 6))
