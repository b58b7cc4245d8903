"""A session ready to run: PID 1 of the sandbox imports this module, and the jobs that it forks find it there."""

from __future__ import annotations

import linecache
import os
import shutil
import sys
import tempfile
from typing import Any

import pytest

from .session import ROOT, Recorder, prepare, run

SAMPLES = {
    "test_outcomes": "def test_passing():\n    assert True\n\n\ndef test_failing():\n    assert False\n",
    "test_broken": "import a_module_that_is_not_there\n",
}


def warm() -> tuple[pytest.Session, Recorder]:
    """The session, after runs by which everything is imported that runs need. Raises ImportError if they go wrong."""
    os.environ["PYTEST_DISABLE_PLUGIN_AUTOLOAD"] = "1"
    modules = set(sys.modules)
    lines: list[Any] = []
    for name, text in SAMPLES.items():
        with tempfile.TemporaryDirectory() as root:
            os.mkdir(f"{root}/tests")
            with open(f"{root}/tests/{name}.py", "w") as file:
                file.write(text)
            run(*prepare(root), lines.append)
    if [line[0] for line in lines] != ["test", "test", "finished", "error", "finished"]:
        raise ImportError(f"pytest {pytest.__version__} does not run as it should: {lines}")
    for name in set(sys.modules) - modules:
        if name.split(".")[0] in ("tests", *SAMPLES):
            del sys.modules[name]
    linecache.clearcache()
    os.makedirs(f"{ROOT}/tests")  # pytest looks for them when it is configured
    os.chdir(ROOT)
    ready = prepare(ROOT)
    os.chdir("/")
    shutil.rmtree(ROOT)
    return ready


READY = warm()
