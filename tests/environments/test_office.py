"""The office domain in its sandboxes: what must hold for every environment."""

from __future__ import annotations

import base64
import io
import json
import shutil
import zipfile
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio
from office_episodes import play

from k3rl.environment import Domain
from k3rl.environments.office import OfficeDomain
from k3rl.environments.office.policies import VARIANTS, call, read, say, write
from k3rl.environments.office.policies import play as script
from k3rl.errors import UserError
from k3rl.types import Task

pytestmark = [
    pytest.mark.asyncio(loop_scope="module"),
    pytest.mark.skipif(shutil.which("bwrap") is None, reason="bubblewrap is not installed"),
]
CASES = [("train", family) for family in OfficeDomain.families]
CASES += [("test_heldout", family) for family in OfficeDomain.heldout]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def domain() -> AsyncIterator[OfficeDomain]:
    made = OfficeDomain(sandboxes=2, judges=1)
    yield made
    await made.close()


def first(domain: OfficeDomain, family: str, level: int, split: str = "train") -> Task:
    return domain.task(split, seed=11, level=level, index=0, family=family)  # type: ignore[arg-type]


async def test_it_is_a_domain(domain: OfficeDomain) -> None:
    assert isinstance(domain, Domain)
    assert len(domain.families) >= 6
    assert domain.heldout
    assert not set(domain.families) & set(domain.heldout)


@pytest.mark.parametrize(("split", "family"), CASES)
async def test_oracle_scores_one(domain: OfficeDomain, split: str, family: str) -> None:
    for level in range(1, domain.levels + 1):
        for variant in range(VARIANTS):
            task = domain.task(split, seed=5, level=level, index=variant, family=family)  # type: ignore[arg-type]
            score, observations = await play(domain, task, domain.solve(task, variant))
            assert score.reward == 1.0, (task.id, task.messages[0].content, score, observations)
            assert not any(text.startswith("error") for text in observations)


@pytest.mark.parametrize(("split", "family"), CASES)
async def test_cheats_score_zero(domain: OfficeDomain, split: str, family: str) -> None:
    for level in (2, 5):
        task = first(domain, family, level, split)
        for name, cheat in domain.exploits(task).items():
            score, observations = await play(domain, task, cheat())
            assert score.reward == 0.0, (name, task.id, task.messages[0].content, observations)


async def test_tasks_repeat_and_splits_differ(domain: OfficeDomain) -> None:
    for level in range(1, 6):
        prompts = []
        for split in ("train", "validation", "test"):
            made = [domain.task(split, seed=1, level=level, index=i) for i in range(16)]  # type: ignore[arg-type]
            assert made == [domain.task(split, seed=1, level=level, index=i) for i in range(16)]  # type: ignore[arg-type]
            assert {task.family for task in made} == set(domain.families)
            prompts += [(task.messages[0].content, json.dumps(task.payload["sheets"])) for task in made]
        assert len(set(prompts)) == len(prompts)
    assert first(domain, "copy", 2).id == "office/train/copy/2/11-0"


async def test_same_task_same_bytes_same_score(domain: OfficeDomain) -> None:
    task = first(domain, "join", 5)
    runs = [await play(domain, task, domain.solve(task, 3)) for _ in range(2)]
    assert runs[0] == runs[1]


async def test_the_answer_is_not_shown_before_it_is_found(domain: OfficeDomain) -> None:
    for level in range(1, 6):
        for index in range(20):
            task = domain.task("test", seed=2, level=level, index=index, family="lookup")
            words = task.messages[0].content.replace("?", " ").replace(".", " ").split()
            assert str(task.payload["answer"]) not in words


async def test_prompts_and_observations_are_short(domain: OfficeDomain) -> None:
    for _, family in CASES:
        split = "train" if family in domain.families else "test_heldout"
        for level, most in ((1, 40), (2, 60), (3, 60), (4, 60), (5, 90)):
            assert len(first(domain, family, level, split).messages[0].content.split()) <= most
    for family in ("enter", "replace", "copy", "lookup"):
        task = first(domain, family, 3)
        _, observations = await play(domain, task, domain.solve(task))
        assert max(map(len, observations)) <= 200


async def test_mistakes_are_observations(domain: OfficeDomain) -> None:
    task = first(domain, "enter", 3)
    sheet = next(iter(task.payload["sheets"]))
    calls = [
        ("write", {"cell": "B2"}), ("format", {}), ("read", {"range": 7}), read("Q"), read("A1:Z99"),
        read("nowhere!A1"), write("A1:B2", 1), write("AAA1", 1), write(sheet, 1), write("B2", "x" * 300),
        write("B2", "a\x07b"),
    ]  # fmt: skip
    _, observations = await play(domain, task, script([call(*calls[:8]), call(*calls[8:]), say("done")]))
    assert len(observations) == len(calls)
    assert all(text.startswith("error: ") and "\n" not in text and len(text) < 220 for text in observations)


async def test_unknown_tasks_are_refused(domain: OfficeDomain) -> None:
    for wrong in ({"level": 6}, {"level": 0}, {"family": "swap"}, {"split": "dev"}):
        with pytest.raises(UserError, match="levels are 1 to 5"):
            domain.task(**{"split": "train", "seed": 1, "level": 1, "index": 0, **wrong})  # type: ignore[arg-type]


def bomb() -> bytes:
    """A small archive that unpacks to a hundred megabytes."""
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("xl/worksheets/sheet1.xml", b"\0" * (100 << 20))
    return file.getvalue()


async def test_hostile_artifacts_score_zero(domain: OfficeDomain) -> None:
    task = first(domain, "lookup", 1)
    answer = str(task.payload["answer"])
    for workbook in (b"", b"PK\x03\x04 nonsense", b"\0" * 1000, bomb()):
        artifacts = {"answer": answer, "workbook": base64.b64encode(workbook).decode()}
        score = await domain.score(task, artifacts)
        assert score.reward == 0.0
        assert score.parts["readable"] == 0.0
    for artifacts in ({}, {"answer": answer, "workbook": "%%%"}, {"workbook": "", "answer": answer}):
        assert (await domain.score(task, artifacts)).reward == 0.0
