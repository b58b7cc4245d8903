"""Who may import whom: the contracts of .importlinter hold, and they do fail on a tree that breaks them."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
LINKED = ("environments", "rewards", "kernels")


def lint(folder):
    program = "from importlinter.cli import lint_imports_command; lint_imports_command()"
    return subprocess.run(
        [sys.executable, "-c", program, "--no-cache"],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(folder)},
        capture_output=True,
        text=True,
    )


def test_the_contracts_hold():
    done = lint(ROOT)
    assert done.returncode == 0, done.stdout
    assert "0 broken" in done.stdout


@pytest.fixture(scope="module")
def tree(tmp_path_factory):
    """A copy of the package's Python files, links and all."""
    folder = tmp_path_factory.mktemp("tree")
    for name in ("k3rl", *LINKED):
        only_python = shutil.ignore_patterns("__pycache__", "assets", "conf", *LINKED)
        shutil.copytree(ROOT / name, folder / name, ignore=only_python)
    for name in LINKED:
        (folder / "k3rl" / name).symlink_to(f"../{name}")
    shutil.copyfile(ROOT / ".importlinter", folder / ".importlinter")
    return folder


def test_broken_rules_are_caught(tree):
    broken = {
        "rewards/files.py": "import torch",
        "kernels/moe/reference.py": "from k3rl.model import Model",
        "k3rl/types.py": "import k3rl.errors",
        "k3rl/errors.py": "import k3rl.types",
        "k3rl/learner/packing.py": "def late():\n    from k3rl.inference import Engine",
        "k3rl/rollout/episode_worker.py": "from k3rl.rollout.policy_worker import PolicyWorker",
        "k3rl/orchestrator.py": "import k3rl.environments.office",
    }
    for name, line in broken.items():
        with (tree / name).open("a") as file:
            file.write(f"\n{line}\n")
    done = lint(tree)
    assert done.returncode == 1
    said = " ".join(done.stdout.split())
    for found in (
        "k3rl.kernels is not allowed to import k3rl.model",
        "k3rl.errors is not allowed to import k3rl.types",
        "k3rl.learner is not allowed to import k3rl.inference",
        "k3rl.rewards is not allowed to import torch",
        "k3rl.rollout.episode_worker is not allowed to import torch",
        "k3rl.orchestrator is not allowed to import k3rl.environments.office",
    ):
        assert found in said
