"""What runs inside the sandbox: a repository's real pytest suite, and plain calls of its functions.

Untrusted code runs in a child of the job: it may exit, kill, patch pytest or write what it likes into the child's
pipe. The job itself never imports it, keeps its own result descriptor from it, and so always answers. The judge does
not lean on the suite's record alone: `values` sends results out of a process that has neither tests nor expected
values in reach, and they are compared outside the sandbox.

Standard library and pytest only: this file is copied into the sandbox.
"""

from __future__ import annotations

import copy
import importlib
import json
import linecache
import os
import select
import sys
from collections.abc import Callable, Mapping
from typing import Any

import pytest

ROOT = "/w/repo"
RESULT_BYTES = 1 << 18
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


def suite(argument: Mapping[str, Any]) -> dict[str, Any]:
    """Run pytest on `files` {path: text}: outcomes and one-line notes by test id, errors by file, whether it ended.

    `{"outcomes": {"tests/test_kiwi.py::test_fig": "failed"}, "notes": {"tests/...": "assert fig(1) == 2"},
    "errors": {"tests/test_oak.py": "SyntaxError"}, "finished": true}`
    """
    place(argument["files"])
    outcomes: dict[str, str] = {}
    notes: dict[str, str] = {}
    errors: dict[str, str] = {}
    finished = False
    for line in isolated(run_pytest, ROOT):
        match line:
            case ["test", str(name), str(outcome), str(note)]:
                outcomes[name], notes[name] = outcome, note
            case ["error", str(name), str(note)]:
                errors[name] = note
            case ["finished"]:
                finished = True
    return {"outcomes": outcomes, "notes": notes, "errors": errors, "finished": finished}


def values(argument: Mapping[str, Any]) -> dict[str, list[str]]:
    """Call functions of `files`: `calls` is {key: [module, function, [inputs, ...]]}, the answer {key: [text, ...]}.

    A text is canonical JSON of a result of plain types, or "!" and the name of what was raised.
    """
    place(argument["files"])
    answers: dict[str, list[str]] = {}
    for line in isolated(run_calls, argument["calls"]):
        match line:
            case [str(key), list(texts)]:
                answers[key] = texts
    return answers


def place(files: Mapping[str, str]) -> None:
    """Write the repository into a new folder and go there; the sandbox is fresh."""
    os.mkdir(ROOT)
    for path, text in files.items():
        os.makedirs(os.path.dirname(f"{ROOT}/{path}"), exist_ok=True)
        with open(f"{ROOT}/{path}", "w", encoding="utf-8", errors="surrogatepass") as file:
            file.write(text)
    os.chdir(ROOT)


def isolated(function: Callable[[Any, Callable[[Any], None]], None], argument: Any) -> list[Any]:
    """JSON lines that `function(argument, send)` sent from a forked child; lines that are no JSON are left out."""
    results, end = os.pipe()
    pid = os.fork()
    if pid == 0:
        _child(function, argument, end)
    os.close(end)
    pidfd = os.pidfd_open(pid)
    data = bytearray()
    while len(data) < RESULT_BYTES:
        ready, _, _ = select.select([results, pidfd], [], [])
        if results in ready:
            part = os.read(results, 1 << 16)
            data += part
            if part:
                continue
        break  # end of file, or dead with nothing left to read (its children may hold the pipe open)
    os.kill(pid, 9)
    os.waitpid(pid, 0)
    return [value for line in bytes(data).splitlines() if (value := _parsed(line)) is not None]


def _parsed(line: bytes) -> Any:
    try:
        return json.loads(line)
    except (ValueError, RecursionError):
        return None  # untrusted code wrote into the pipe


def _child(function: Callable[[Any, Callable[[Any], None]], None], argument: Any, end: int) -> None:
    """Never returns. Only the pipe and /dev/null are open while untrusted code runs."""
    try:
        null = os.open("/dev/null", os.O_RDWR)
        for fd in (0, 1, 2):
            os.dup2(null, fd)
        pipe = os.dup2(end, 3) if end != 3 else end
        os.closerange(4, 1024)
        sys.path.insert(0, ROOT)
        dump, write = json.dumps, os.write

        def send(value: Any) -> None:
            write(pipe, dump(value).encode() + b"\n")

        function(argument, send)
    finally:
        os._exit(0)


def run_calls(calls: Mapping[str, Any], send: Callable[[Any], None]) -> None:
    """One line for each key, as soon as its calls are done."""
    for key, (module, name, inputs) in calls.items():
        try:
            function = getattr(importlib.import_module(module), name)
        except BaseException as error:  # SystemExit, too: the code is not ours
            send([key, [f"!{type(error).__name__}"] * len(inputs)])
            continue
        send([key, [_text(function, arguments) for arguments in inputs]])


def _text(function: Callable[..., Any], arguments: list[Any]) -> str:
    try:
        value = function(*copy.deepcopy(arguments))
        return json.dumps(value, sort_keys=True) if plain(value) else f"!{type(value).__name__}"
    except BaseException as error:  # as above
        return f"!{type(error).__name__}"


def plain(value: Any) -> bool:
    """Whether a value is JSON by its exact types: a subclass may lie about what it equals."""
    if type(value) is list:
        return all(map(plain, value))
    if type(value) is dict:
        return all(type(key) is str and plain(item) for key, item in value.items())
    return value is None or type(value) in (bool, int, float, str)


class Recorder:
    """A pytest plugin that sends outcomes as they come, and keeps reports cheap: one line instead of a traceback."""

    def __init__(self, send: Callable[[Any], None]) -> None:
        self._send = send

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
            self._send(["test", report.nodeid, report.outcome, str(report.longrepr or "")])

    def pytest_exception_interact(self, node: pytest.Item, call: pytest.CallInfo[Any], report: Any) -> None:
        if isinstance(report, pytest.CollectReport) and call.excinfo is not None:
            error = call.excinfo.value
            name = type(error.__cause__ or error.__context__ or error).__name__
            self._send(["error", report.nodeid, name])


def _note(item: pytest.Item, info: pytest.ExceptionInfo[BaseException]) -> str:
    """The line of the test that failed, and what was raised if it was not the assertion."""
    path, note = str(item.path), ""
    trace = info.tb
    while trace is not None:
        if trace.tb_frame.f_code.co_filename == path:
            note = linecache.getline(path, trace.tb_lineno).strip()
        trace = trace.tb_next  # type: ignore[assignment]
    return note if info.type is AssertionError else f"{note} ({info.type.__name__})".strip()


def run_pytest(root: str, send: Callable[[Any], None]) -> None:
    """Collect and run `tests` below `root` in this process; no conftest, no ini file, no plugin from outside."""
    options = ["--rootdir", root, "-c", "/dev/null", "--noconftest", "--assert=plain", "--import-mode=importlib"]
    for name in OFF:
        options += ["-p", f"no:{name}"]
    pytest.main([*options, f"{root}/tests"], plugins=[Recorder(send)])
    send(["finished"])
