"""A pytest session in two halves: what every run shares, done once before the fork, and the run.

Standard library and pytest only: this file is copied into the sandbox.
"""

from __future__ import annotations

import linecache
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pytest
from _pytest.config import _prepareconfig

ROOT = "/w/repo"
OFF = (
    "cacheprovider",
    "capture",
    "debugging",
    "doctest",
    "faulthandler",
    "junitxml",
    "legacypath",
    "logging",
    "monkeypatch",
    "pastebin",
    "recwarn",
    "reports",
    "setuponly",
    "setupplan",
    "skipping",
    "stepwise",
    "subtests",
    "terminal",
    "threadexception",
    "tmpdir",
    "unittest",
    "unraisableexception",
    "warnings",
)
"""Built-in plugins that the suites do not need; without them a run costs a fifth."""


class Recorder:
    """A pytest plugin that sends outcomes as they come, and keeps reports cheap: one line instead of a traceback."""

    send: Callable[[Any], None]  # told when the session is run

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_makereport(self, item: pytest.Item, call: pytest.CallInfo[None]) -> pytest.TestReport:
        failed = call.excinfo is not None
        return pytest.TestReport(
            nodeid=item.nodeid,
            location=item.location,
            keywords={},
            outcome="failed" if failed else "passed",
            longrepr=_note(item, call.excinfo) if call.excinfo is not None else None,
            when=call.when,  # type: ignore[arg-type]
        )

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.when == "call" or report.failed:
            self.send(["test", report.nodeid, report.outcome, str(report.longrepr or "")])

    def pytest_exception_interact(self, node: pytest.Item, call: pytest.CallInfo[Any], report: Any) -> None:
        if isinstance(report, pytest.CollectReport) and call.excinfo is not None:
            error = call.excinfo.value
            name = type(error.__cause__ or error.__context__ or error).__name__
            self.send(["error", report.nodeid, name])


def _note(item: pytest.Item, info: pytest.ExceptionInfo[BaseException]) -> str:
    """The line of the test that failed, and what was raised if it was not the assertion."""
    path, note = str(item.path), ""
    trace = info.tb
    while trace is not None:
        if trace.tb_frame.f_code.co_filename == path:
            note = linecache.getline(path, trace.tb_lineno).strip()
        trace = trace.tb_next  # type: ignore[assignment]
    return note if info.type is AssertionError else f"{note} ({info.type.__name__})".strip()


def prepare(root: str) -> tuple[pytest.Session, Recorder]:
    """A session on `root`/tests just before its collection: two thirds of what a small run costs.

    No conftest, no ini file, no plugin from outside, no look at other folders.
    """
    options = ["--rootdir", root, "-c", "/dev/null", "--confcutdir", f"{root}/tests", "--noconftest"]
    options += ["--assert=plain", "--import-mode=importlib"]
    for name in OFF:
        options += ["-p", f"no:{name}"]
    recorder = Recorder()
    config = _prepareconfig([*options, f"{root}/tests"], [recorder])
    session = pytest.Session.from_config(config)
    config._do_configure()
    config.hook.pytest_sessionstart(session=session)
    return session, recorder


def run(session: pytest.Session, recorder: Recorder, send: Callable[[Any], None]) -> None:
    """Collect and run the tests, as `pytest.main` does from there on, and tell when that is over."""
    recorder.send = send
    with suppress(BaseException):  # what ends a session early (an error of collection, SystemExit) is in the record
        session.config.hook.pytest_collection(session=session)
        session.config.hook.pytest_runtestloop(session=session)
    send(["finished"])
