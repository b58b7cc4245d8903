"""Tasks, oracle, cheats and scoring of the terminal domain."""

import json
import re
import shutil
from collections.abc import AsyncIterator

import pytest

from k3rl.environment import Domain
from k3rl.environments.pools import WORDS
from k3rl.environments.terminal import Terminal
from k3rl.environments.terminal.families import HELDOUT, TRAINED
from k3rl.errors import ConfigError
from k3rl.types import Split, Task
from tests.environments.terminal_episodes import episode, run, solved_and

pytestmark = pytest.mark.skipif(shutil.which("bwrap") is None, reason="bubblewrap is not installed")
ALL: list[tuple[Split, str]] = [("train", name) for name in TRAINED] + [("test_heldout", name) for name in HELDOUT]
LEVELS = range(1, 6)


@pytest.fixture
async def domain() -> AsyncIterator[Terminal]:
    made = Terminal(sandboxes=2, graders=1)
    yield made
    await made.close()


def first(domain: Terminal, family: str, level: int, index: int = 0) -> Task:
    split: Split = "test_heldout" if family in HELDOUT else "train"
    return domain.task(split, seed=0, level=level, index=index, family=family)


@pytest.mark.parametrize(("split", "family"), ALL)
async def test_every_variant_solves_and_doing_nothing_does_not(domain: Terminal, split: Split, family: str) -> None:
    for level in LEVELS:
        for index in range(2):
            task = domain.task(split, seed=3, level=level, index=index, family=family)
            for variant in range(len(task.payload["solutions"]) + 1):
                score, seen = await episode(domain, task, domain.solve(task, variant))
                assert score.reward == 1.0, (task.id, variant, task.messages, seen, score)
            score, _ = await run(domain, task)
            assert score.reward == 0.0, task.id


@pytest.mark.parametrize(("split", "family"), ALL)
async def test_no_cheat_pays(domain: Terminal, split: Split, family: str) -> None:
    for level in (1, 3, 5):
        task = domain.task(split, seed=4, level=level, index=0, family=family)
        for name, cheat in domain.exploits(task).items():
            score, seen = await episode(domain, task, cheat())
            assert score.reward == 0.0, (task.id, name, seen, score)


@pytest.mark.parametrize(("split", "family"), ALL)
def test_tasks_are_plain_reproducible_short_and_need_a_look_from_level_3(split: Split, family: str) -> None:
    domain = Terminal()
    for level in LEVELS:
        for index in range(20):
            task = domain.task(split, seed=0, level=level, index=index, family=family)
            assert task == Terminal().task(split, seed=0, level=level, index=index, family=family)
            assert json.loads(json.dumps(task.payload)) == task.payload
            prompt = task.messages[0].content
            assert len(prompt.split()) <= (40 if level == 1 else 90)
            unseen = _names(" ".join(task.payload["solutions"][0])) - _names(prompt)
            if level >= 3:
                assert unseen, (task.id, prompt)
            else:
                assert not unseen, (task.id, prompt, unseen)


def _names(text: str) -> set[str]:
    """Words of the pool and numbers: what a task is about."""
    return {piece for piece in re.findall(r"[a-zA-Z]+|[0-9]+", text) if piece.isdigit() or piece in WORDS}


def test_splits_families_and_levels_are_kept_apart() -> None:
    domain = Terminal()
    assert isinstance(domain, Domain)
    splits: tuple[Split, ...] = ("train", "validation", "test", "test_heldout")
    made = [domain.task(split, seed=0, level=2, index=index) for split in splits for index in range(60)]
    assert len({task.id for task in made}) == len(made)
    assert {task.family for task in made if task.split == "test_heldout"} == set(domain.heldout)
    assert {task.family for task in made if task.split == "train"} == set(domain.families)
    assert not set(domain.families) & set(domain.heldout)
    with pytest.raises(ConfigError, match="levels 1 to 5"):
        domain.task("train", seed=0, level=6, index=0)
    with pytest.raises(ConfigError, match="no family 'links' in train"):
        domain.task("train", seed=0, level=1, index=0, family="links")
    with pytest.raises(ConfigError, match="at least 1"):
        Terminal(sandboxes=0)


async def test_the_same_task_shows_the_same_bytes(domain: Terminal) -> None:
    for _, family in ALL:
        task = first(domain, family, 4)
        assert await episode(domain, task, domain.solve(task)) == await episode(domain, task, domain.solve(task))


async def test_observations(domain: Terminal) -> None:
    task = first(domain, "move", 1)
    _, seen = await run(domain, task, "true", "false", "echo a; (exit 3)", "printf 'a\\n\\n'", "exit 4", "seq 10000")
    assert seen[:4] == ["ok", "(exit 1)", "a\n(exit 3)", "a"]
    assert seen[4] == "[the shell ended (status 4), a new one starts]"
    assert "characters cut" in seen[5]
    assert len(seen[5]) < 900


async def test_parts_tell_what_was_wrong(domain: Terminal) -> None:
    task = first(domain, "search", 1)
    target = next(path for path in task.payload["after"] if path not in task.payload["before"])
    kept = next(iter(task.payload["before"]))
    wrong = {
        "present": f"rm {target}",
        "contents": f"echo more >> {target}",
        "nothing_else": "touch more",
    }
    for part, command in wrong.items():
        score = await solved_and(domain, task, command)
        assert (score.reward, score.parts[part]) == (0.0, 0.0), (part, score)
        assert sum(value == 0.0 for value in score.parts.values()) == 1
    assert (await solved_and(domain, task, f"cp {kept} /tmp; rm {kept}; ln -s /tmp/{kept} {kept}")).reward == 0.0
    assert (await solved_and(domain, task, f"chmod 000 {target}")).reward == 0.0


async def test_modes_count_where_the_task_is_about_them(domain: Terminal) -> None:
    task = first(domain, "permissions", 1)
    other = next(path for path in task.payload["before"] if path not in task.messages[0].content)
    score = await solved_and(domain, task, f"chmod 777 {other}")
    assert (score.reward, score.parts["modes"]) == (0.0, 0.0)


async def test_scripts_are_run_on_other_inputs(domain: Terminal) -> None:
    task = first(domain, "scripts", 1)
    script = task.payload["reruns"][0]["script"]
    printed = f"bash {script} > /tmp/o; (echo \"cat <<'E'\"; cat /tmp/o; echo E) > {script}"
    assert (await solved_and(domain, task, printed)).parts["reruns"] == 0.0
    for tail in ("sleep 60", "yes", "echo more", "kill -9 1; kill -9 $PPID"):
        assert (await solved_and(domain, task, f"echo '{tail}' >> {script}")).reward == 0.0, tail
    assert (await solved_and(domain, task, f"sed -i '1i # a comment' {script}; chmod +x {script}")).reward == 1.0


async def test_archives_are_judged_by_what_they_unpack_to(domain: Terminal) -> None:
    task = next(
        task for index in range(20) if ".tar of" in (task := first(domain, "archives", 2, index)).messages[0].content
        or "Pack" in task.messages[0].content
    )  # fmt: skip
    archive = next(path for path in task.payload["after"] if path not in task.payload["before"])
    names = " ".join(task.payload["after"][archive]["tar"])
    assert (await run(domain, task, f"tar --sort=name -cf {archive} ./{names.replace(' ', ' ./')}"))[0].reward == 1.0
    assert (await run(domain, task, f"tar -czf {archive} {names}"))[0].reward == 1.0  # tar itself tells what it is
    for command in (
        f"tar -cf {archive} {names.split()[0]}",
        f"tar -cf {archive} {names} -C / etc/passwd",
        f"echo no > {archive}",
        f"head -c 3000000 /dev/zero | tar -cf {archive} --transform 's,x,x,' {names} -C / usr/bin/bash",
    ):
        assert (await run(domain, task, command))[0].reward == 0.0, command


async def test_a_late_writer_is_stopped_before_the_tree_is_read(domain: Terminal) -> None:
    task = first(domain, "move", 1)
    (command,) = task.payload["solutions"][0]
    score, _ = await run(domain, task, f"(setsid bash -c 'sleep 3; {command}' > /dev/null 2>&1 &)")
    assert score.reward == 0.0
