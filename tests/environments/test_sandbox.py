"""Bash, Python jobs and files of a sandbox."""

import shutil
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from k3rl.environments.sandbox import JobFailure, Sandbox, SandboxPool, SandboxSpec
from k3rl.environments.sandbox.inside import wire
from k3rl.errors import AgentFault, EnvironmentFault, SandboxError

pytestmark = pytest.mark.skipif(shutil.which("bwrap") is None, reason="bubblewrap is not installed")


@pytest.fixture
async def box() -> AsyncIterator[Sandbox]:
    spec = SandboxSpec(jobs=("tests.environments.sandbox_jobs",))
    async with SandboxPool(spec, size=1) as pool, await pool.acquire() as lent:
        yield lent


async def test_the_shell_lives_on_between_commands(box: Sandbox) -> None:
    await box.write({"a/b.txt": b"hello\n"})
    assert (await box.bash("cd a; x=5; f() { echo $((x + 1)); }")).text == ""
    assert (await box.bash("pwd; f; cat b.txt")).text == "/w/a\n6\nhello\n"


@pytest.mark.parametrize(
    ("command", "text", "code"),
    [
        ("false", "", 1),
        ("cat", "", 0),  # standard input is empty, not the next command
        ("echo 'open", "bash: eval: line 4: unexpected EOF while looking for matching `''\n", 2),
        ("echo a; echo b >&2", "a\nb\n", 0),
        ("printf 'no end'", "no end", 0),
        ("printf '\\xff'", "\ufffd", 0),
        ("echo 'two\nlines' | wc -l", "2\n", 0),
        ("", "", 0),
    ],
)
async def test_output_and_exit_code(box: Sandbox, command: str, text: str, code: int) -> None:
    result = await box.bash(command)
    assert (result.text, result.code, result.note) == (text, code, "")
    assert (await box.bash("echo next")).text == "next\n"


@pytest.mark.parametrize(
    ("command", "reason"),
    [
        ("exit 3", "the shell ended (status 3)"),
        ("kill -9 $$", "the shell ended (status -9)"),
        ("exec true", "the shell ended (status 0)"),
        ("sleep 30", "out of time (over 0.5 s)"),
        ("while :; do :; done", "out of time"),
        ("builtin() { :; }", "out of time"),  # its own end marker never comes
    ],
)
async def test_a_broken_shell_is_told_and_replaced(box: Sandbox, command: str, reason: str) -> None:
    await box.bash("mkdir kept; cd kept")
    result = await box.bash(command, seconds=0.5)
    assert reason in result.note
    assert result.text.endswith(f"[{result.note}]")
    assert result.timed_out == ("out of time" in reason)
    assert (await box.bash("pwd; ls")).text == "/w\nkept\n"


async def test_output_is_cut_at_the_limit(box: Sandbox) -> None:
    result = await box.bash("seq 10000", limit=10)
    assert (result.text, result.truncated, result.code) == ("1\n2\n3\n4\n5\n", True, 0)


async def test_impossible_commands_are_refused(box: Sandbox) -> None:
    assert (await box.bash("echo \0")).code == 2
    assert (await box.bash("x" * 100_000)).code == 2


async def test_background_processes_that_take_too_much_are_stopped_between_commands() -> None:
    async with SandboxPool(SandboxSpec(cpu_seconds=1), size=1) as pool, await pool.acquire() as box:
        for _ in range(3):
            await box.bash("while :; do :; done &")
        for _ in range(200):
            result = await box.bash("sleep 0.1", seconds=10)
            if result.note:
                break
        assert "out of CPU time (over 1 s in all)" in result.note


async def test_jobs_return_values_and_tell_how_they_failed(box: Sandbox) -> None:
    assert await box.python("sandbox_jobs:double", [1, "a", None]) == [1, "a", None, 1, "a", None]
    await box.write({"x": b"data"})
    assert await box.python("sandbox_jobs:read", "x") == "data"
    with pytest.raises(EnvironmentFault, match=r"sandbox_jobs:fail: KeyError: 'why'(.|\n)*said before"):
        await box.python("sandbox_jobs:fail")
    for name, reason in {
        "spin": "out of time",
        "crash": "signal 11",
        "leave": "status 7",
        "grow": "MemoryError",
    }.items():
        with pytest.raises(JobFailure, match=reason):
            await box.python(f"sandbox_jobs:{name}", seconds=1)
    assert await box.python("sandbox_jobs:double", []) == []


async def test_a_job_leaves_no_process_behind(box: Sandbox) -> None:
    assert await box.python("sandbox_jobs:spread", 5) == 5
    assert (await box.bash("set -- /proc/[0-9]*; echo $#")).text == "2\n"  # PID 1 and this bash


async def test_lines_of_code_that_nobody_trusts_are_taken_for_what_they_are(box: Sandbox) -> None:
    one, seen = await box.lines("sandbox_jobs:send_and_die")
    assert one == ["one", 1]
    assert seen == {"descriptors": [0, 1, 2, 3], "folder": "/w"}
    assert await box.lines("sandbox_jobs:close_and_stay", seconds=30) == ["before"]
    assert await box.lines("sandbox_jobs:send_much", limit=1030) == ["x" * 100] * 10
    with pytest.raises(JobFailure, match="spin: out of time"):
        await box.lines("sandbox_jobs:spin", seconds=0.3)


async def test_a_resident_job_lives_on_until_it_fails_or_something_else_runs() -> None:
    async with SandboxPool(SandboxSpec(jobs=("tests.environments.sandbox_jobs",)), size=1) as pool:
        box = await pool.acquire()

        async def call(fail: str = "") -> list[int]:
            return await box.python("sandbox_jobs:count", fail, seconds=1, resident=True)

        first = await call()
        assert await call() == [2, first[1]]
        await box.close()
        box = await pool.acquire()
        assert await call() == [3, first[1]]  # another episode, the same process
        for fail, error, reason in (
            ("raise", EnvironmentFault, "KeyError: 'why'"),
            ("die", JobFailure, "ended"),
            ("spin", JobFailure, "out of time"),
        ):
            with pytest.raises(error, match=reason):
                await call(fail)
            assert (await call())[0] == 1
        living = await call()
        assert (await box.bash("set -- /proc/[0-9]*; echo $#")).text == "2\n"  # PID 1 and this bash
        assert (await call())[0] == 1
        assert (await call())[0] == 1  # a shell lives: every job is forked anew
        await box.close()
        box = await pool.acquire()
        assert (await call())[1] != living[1]
        assert (await call())[0] == 2
        assert await box.python("sandbox_jobs:double", [1]) == [1, 1]
        assert (await call())[0] == 1
        await box.close()


async def test_trees_have_modes_and_links_and_follow_none(box: Sandbox) -> None:
    await box.write({"a": b"1", "d/e": b"2", "empty/": b""}, modes={"a": 0o600}, links={"l": "/etc/passwd", "m": "d"})
    await box.bash("mkfifo p; ln -s / d/root; chmod 000 a; ln d/e d/f")
    tree = await box.tree()
    kinds = {path: entry.kind for path, entry in tree.entries.items()}
    assert kinds == {
        "a": "unread", "d": "folder", "empty": "folder", "l": "link",
        "m": "link", "p": "other", "d/e": "file", "d/f": "file", "d/root": "link",
    }  # fmt: skip
    assert tree.entries["l"].target == "/etc/passwd"
    assert tree.entries["a"].mode == 0
    assert not tree.complete
    assert tree.files == {"d/e": b"2", "d/f": b"2"}
    await box.bash("chmod 644 d")  # may be listed and not entered
    tree = await box.tree()
    assert {tree.entries[path].kind for path in ("d/e", "d/f", "d/root")} == {"unread"}
    assert not tree.complete


async def test_trees_are_bounded(box: Sandbox) -> None:
    await box.bash("head -c 3000 /dev/zero > a; echo b > b; for i in $(seq 50); do mkdir -p $i; done")
    tree = await box.tree(limit_bytes=2000)
    assert tree.files == {"b": b"b\n"}
    assert not tree.complete
    assert len((await box.tree(limit_entries=10)).entries) == 10
    await box.bash("for i in $(seq 200); do mkdir d; cd d; done; echo deep > x")
    tree = await box.tree(limit_entries=5000)
    assert not tree.complete
    assert "x" not in {path.rpartition("/")[2] for path in tree.entries}


async def test_writing_where_the_agent_made_it_impossible(box: Sandbox) -> None:
    await box.bash("mkfifo p; mkdir d; ln -s /etc/passwd l; echo x > f")
    for path in ("p", "d", "l", "f/x"):
        with pytest.raises(AgentFault, match="cannot write"):
            await box.write({path: b"1"})
    for path in ("/etc/x", "../x", "a/../../x", ""):
        with pytest.raises(AgentFault, match="not inside the work folder"):
            await box.write({path: b"1"})
    await box.write({"f": b"new"})
    assert await box.read_tree() == {"f": b"new"}


async def test_listings_do_not_show_the_clock(box: Sandbox) -> None:
    await box.write({"d/a": b"1"}, links={"l": "d"})
    times = (await box.bash("stat -c %y d d/a l . | sort -u")).text
    assert times == "2025-01-01 00:00:00.000000000 +0000\n"


def test_frames_survive_the_wire_and_absurd_ones_are_refused() -> None:
    frame = wire.encode({"op": "x", "é": [1]}, b"\0\1")
    text, blob = wire.sizes(frame[: wire.HEAD.size])
    assert (text, blob) == (len(frame) - wire.HEAD.size - 2, 2)
    assert wire.decode(frame[wire.HEAD.size :], text) == ({"op": "x", "é": [1]}, b"\0\1")
    with pytest.raises(ValueError, match="at most"):
        wire.sizes(b"\xff" * 8)


async def test_what_cannot_start_says_why(tmp_path: Path) -> None:
    with pytest.raises(SandboxError, match="pip install no-such-package"):
        await SandboxPool(SandboxSpec(packages=("no-such-package",)), 1).acquire()
    with pytest.raises(SandboxError, match="job module 'no_such_module' cannot be found"):
        await SandboxPool(SandboxSpec(jobs=("no_such_module",)), 1).acquire()
    with pytest.raises(SandboxError, match="preloading failed: ModuleNotFoundError"):
        await SandboxPool(SandboxSpec(preload=("no_such_module",)), 1).acquire()
    open_to_all = tmp_path / "runtime"
    open_to_all.mkdir()
    open_to_all.chmod(0o777)
    with pytest.raises(SandboxError, match="somebody else"):
        await SandboxPool(SandboxSpec(runtime=open_to_all), 1).acquire()
