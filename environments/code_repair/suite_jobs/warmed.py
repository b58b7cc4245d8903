"""Importing this module runs pytest once: PID 1 of the sandbox does, so that forked jobs find everything imported."""

from __future__ import annotations

import linecache
import os
import sys
import tempfile

from .runner import run_pytest

PASSING_AND_FAILING = "def test_passing():\n    assert True\n\n\ndef test_failing():\n    assert False\n"
BROKEN = "import a_module_that_is_not_there\n"


def warm() -> None:
    """One run of a passing, a failing and a broken test in this process, so that forked children find all imported."""
    os.environ["PYTEST_DISABLE_PLUGIN_AUTOLOAD"] = "1"
    before, path = set(sys.modules), list(sys.path)
    with tempfile.TemporaryDirectory() as root:
        os.mkdir(f"{root}/tests")
        with open(f"{root}/tests/test_warm.py", "w") as file:
            file.write(PASSING_AND_FAILING)
        with open(f"{root}/tests/test_broken.py", "w") as file:
            file.write(BROKEN)
        run_pytest(root, lambda line: None)
    sys.path[:] = path
    for name in set(sys.modules) - before:
        if name.split(".")[0] in ("tests", "test_warm", "test_broken"):
            del sys.modules[name]
    linecache.clearcache()


warm()
