"""Demonstrations: played once, kept by shard, resumed at the first missing one, right or refused."""

from dataclasses import replace

import pytest

from k3rl.config import Config, CurriculumSection, RolloutSection, StageSection, SupervisedSection
from k3rl.errors import EnvironmentFault
from k3rl.model_folder import tokenizer_folder
from k3rl.rollout.curriculum import Curriculum
from k3rl.rollout.pool import RolloutPool
from k3rl.supervised import demonstrations, loop
from k3rl.supervised.data import stage_batches
from k3rl.supervised.demonstrations import (
    demonstration_specs,
    generate,
    load_demonstrations,
    missing_shards,
    render,
    to_samples,
)

pytestmark = pytest.mark.usefixtures("ray_cluster")


@pytest.fixture
def make_pool():
    pools = []

    def make(**settings):
        environment = {"echo": {"_target_": "echo_domain.EchoDomain", **settings}}
        pools.append(
            RolloutPool(
                RolloutSection(max_context=640), environment, tokenizer=str(tokenizer_folder("nano")), variants=2
            )
        )
        return pools[-1]

    yield make
    for pool in pools:
        pool.close()


def test_specs_go_through_levels_and_domains_in_turn():
    specs = demonstration_specs({"b": 2, "a": 3}, 6, seed=4)
    assert [(s.level, s.index) for s in specs if s.domain == "a"] == [(1, 0), (2, 0), (3, 0), (1, 1), (2, 1), (3, 1)]
    assert [(s.level, s.index) for s in specs if s.domain == "b"] == [(1, 0), (2, 0), (1, 1), (2, 1), (1, 2), (2, 2)]
    assert [s.domain for s in specs[:4]] == ["a", "b", "a", "b"]
    assert {(s.split, s.player, s.samples, s.seed) for s in specs} == {("train", "solver", 1, 1_000_004)}


def test_training_never_draws_a_task_that_was_demonstrated():
    curriculum = Curriculum(settings=CurriculumSection(), levels={"a": 3}, seed=4)
    drawn, _ = curriculum.draw(curriculum.start(), step=0, groups=20, samples=2, temperature=1.0)
    shown = demonstration_specs({"a": 3}, 60, seed=4)
    assert {s.split for s in drawn} == {s.split for s in shown}
    assert {s.seed for s in drawn}.isdisjoint(s.seed for s in shown)


def test_every_stage_draws_anew_who_stops_early(make_pool, tmp_path, renderer):
    generate(make_pool(), tmp_path, 30, seed=0)
    solutions = render(load_demonstrations(tmp_path), renderer)

    def tokens(name, *chances):
        stage = StageSection(name=name, source="solutions", steps=1, batch_tokens=100_000, unfinished=chances)
        samples = stage_batches(Config(), stage, renderer, lambda: solutions)(0)
        return {s.key.partition("@")[0]: len(s.tokens) for s in samples}

    whole = tokens("first")
    first, second = (tokens(name, 0.5) for name in ("first", "second"))
    assert first == tokens("first", 0.5)
    stopped = [{key for key in whole if some[key] < whole[key]} for some in (first, second)]
    assert all(0 < len(keys) < 30 for keys in stopped)
    assert stopped[0] != stopped[1]


def test_a_killed_generation_goes_on_at_the_first_missing_shard(make_pool, tmp_path, monkeypatch, renderer):
    monkeypatch.setattr(demonstrations, "SHARD", 4)
    pool = make_pool()
    generate(pool, tmp_path, 10, seed=0)
    files = sorted(tmp_path.iterdir())
    assert [file.name for file in files] == [f"step-00000{n}.parquet" for n in range(3)]
    stored = load_demonstrations(tmp_path)
    assert len({row.task_id for row in stored}) == len(stored) == 10
    samples = to_samples(render(stored, renderer), prompt_weight=0.0)

    kept = [(file.stat().st_mtime_ns, file.stat().st_ino) for file in files]
    files[1].unlink()
    played = []
    run = pool.run
    monkeypatch.setattr(pool, "run", lambda specs, told: played.extend(specs) or run(specs, told))
    generate(pool, tmp_path, 10, seed=0)
    assert played == demonstration_specs({"echo": 2}, 10, seed=0)[4:8]
    now = [(file.stat().st_mtime_ns, file.stat().st_ino) for file in files]
    assert (now[0], now[2]) == (kept[0], kept[2])
    again = to_samples(render(load_demonstrations(tmp_path), renderer), prompt_weight=0.0)
    assert [(s.key, s.tokens.tolist()) for s in again] == [(s.key, s.tokens.tolist()) for s in samples]


def test_no_sandbox_is_started_for_demonstrations_that_are_all_there(make_pool, tmp_path, monkeypatch):
    monkeypatch.setattr(demonstrations, "SHARD", 4)
    config = Config(environment={"echo": {}}, sft=SupervisedSection(demonstrations=10))
    generate(make_pool(), tmp_path, 10, seed=0)

    def started(config, model):
        raise AssertionError("a pool was started")

    monkeypatch.setattr(loop, "rollout_pool", started)
    loop.demonstrate(config, tmp_path)
    assert missing_shards(tmp_path, 10) == []
    assert missing_shards(tmp_path / "nowhere", 8) == [0, 1]
    (tmp_path / "step-000001.parquet").unlink()
    assert missing_shards(tmp_path, 10) == [1]
    with pytest.raises(AssertionError, match="a pool was started"):
        loop.demonstrate(config, tmp_path)


def test_a_stage_s_learner_takes_the_learner_s_settings():
    learner = replace(Config().learner, expert_rate=3.0, warmup_steps=7)
    stage = loop.learner_stage(Config(learner=learner), StageSection(steps=5, learning_rate=1e-3))
    assert (stage.expert_rate, stage.warmup, stage.learning_rate, stage.objective) == (3.0, 4, 1e-3, "sft")


def test_a_reference_solution_that_fails_is_refused(make_pool, tmp_path):
    with pytest.raises(EnvironmentFault, match=r"the reference solution of echo/train/.* scored None: RuntimeError"):
        generate(make_pool(fail_every=3), tmp_path, 6, seed=0)
    assert list(tmp_path.iterdir()) == []
