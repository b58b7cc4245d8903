"""What runs inside the sandbox: a repository's real pytest suite, and plain calls of its functions.

Both are jobs by lines: untrusted code runs in their process, which may exit, crash, patch pytest or send what it likes.
So the judge does not lean on the suite's record alone: `values` sends results out of a process that has neither tests
nor expected values in reach, and they are compared outside the sandbox.

Standard library and pytest only: this file is copied into the sandbox.
"""

from __future__ import annotations

import copy
import importlib
import json
import os
import sys
from collections.abc import Callable, Mapping
from typing import Any

from .session import ROOT, run


def suite(files: Mapping[str, str], send: Callable[[Any], None]) -> None:
    """Run pytest on `files` {path: text}, and send each outcome, with a one-line note, as it comes.

    `["test", "tests/test_kiwi.py::test_fig", "failed", "assert fig(1) == 2"]`; a file that cannot be collected is
    `["error", "tests/test_oak.py", "SyntaxError"]`; the last line is `["finished"]`.
    """
    from .warmed import READY  # in PID 1 alone: its import runs pytest

    place(files)
    run(*READY, send)


def values(argument: Mapping[str, Any], send: Callable[[Any], None]) -> None:
    """Call functions of `files`: `calls` is {key: [module, function, [inputs, ...]]}; one line [key, [text, ...]] each.

    A text is canonical JSON of a result of plain types, or "!" and the name of what was raised.
    """
    place(argument["files"])
    for key, (module, name, inputs) in argument["calls"].items():
        try:
            function = getattr(importlib.import_module(module), name)
        except BaseException as error:  # SystemExit, too: the code is not ours
            send([key, [f"!{type(error).__name__}"] * len(inputs)])
            continue
        send([key, [_text(function, arguments) for arguments in inputs]])


def place(files: Mapping[str, str]) -> None:
    """Write the repository into a new folder and go there; the sandbox is fresh."""
    os.mkdir(ROOT)
    for path, text in files.items():
        os.makedirs(os.path.dirname(f"{ROOT}/{path}"), exist_ok=True)
        with open(f"{ROOT}/{path}", "w", encoding="utf-8", errors="surrogatepass") as file:
            file.write(text)
    os.chdir(ROOT)
    sys.path.insert(0, ROOT)


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
