"""The pool over real Ray actors, with solvers as players: order, deaths, what is told of broken domains."""

import os
import signal
from dataclasses import replace

import pytest
import ray

from k3rl.config import RolloutSection
from k3rl.errors import ConfigError, DeadlineError, EnvironmentFault, InfrastructureError
from k3rl.model_folder import tokenizer_folder
from k3rl.observability.trajectories import read_trajectories
from k3rl.orchestrator import step_metrics
from k3rl.rollout.group import GroupSpec
from k3rl.rollout.pool import RolloutPool
from k3rl.types import StopReason

pytestmark = pytest.mark.usefixtures("ray_cluster")

ECHO = {"echo": {"_target_": "echo_domain.EchoDomain"}}
SPEC = GroupSpec(domain="echo", split="train", level=1, index=0, samples=2, seed=0, temperature=0.0, player="solver")
SPECS = [replace(SPEC, level=1 + index % 2, index=index) for index in range(12)]


@pytest.fixture
def make_pool():
    pools = []

    def make(environment=ECHO, model=None, **rollout):
        settings = RolloutSection(**{"max_context": 640, "concurrent_episodes": 4, **rollout})
        pool = RolloutPool(settings, environment, tokenizer=str(tokenizer_folder("nano")), model_config=model)
        pools.append(pool)
        return pool

    yield make
    for pool in pools:
        pool.close()


def test_groups_come_back_in_order_whole_and_recorded(make_pool, tmp_path):
    pool = make_pool(episode_workers=2)
    assert pool.levels == {"echo": 2}
    told = []
    groups = pool.run(SPECS, told.append)
    assert [group.spec for group in groups] == SPECS
    assert sorted(group.spec.index for group in told) == list(range(12))
    for group in groups:
        assert [e.sample for e in group.episodes] == [0, 1]
        assert all(e.success and e.level == group.spec.level and e.turns == 2 for e in group.episodes)
    path = tmp_path / "step-000001.parquet"
    pool.record(groups, [[0.5, -0.5]] * 12, path=str(path), step=1, run="r").wait()
    rows = read_trajectories(path)
    assert [(row.task_id, row.sample, row.advantage) for row in rows] == [
        (e.task_id, e.sample, 0.5 - e.sample) for group in groups for e in group.episodes
    ]


def test_trajectories_that_nobody_wants_leave_the_object_store(make_pool):
    pool = make_pool()
    taken = []
    submit = pool.submit
    pool.submit = lambda spec, place: (taken.append(submit(spec, place)), taken[-1])[1]
    kept = pool.run(SPECS[:2])
    dropped = pool.run(SPECS[:2], keep_trajectories=False)
    assert [group.trajectories for group in kept] == [trajectories for _, trajectories in taken[:2]]
    assert [group.trajectories for group in dropped] == [None, None]
    assert [group.episodes[0].task_id for group in dropped] == [group.episodes[0].task_id for group in kept]


def worker_pid(pool, place=0):
    return ray.get(pool.episode_workers[place].actor.__ray_call__.remote(lambda worker: os.getpid()))


def test_a_worker_s_death_loses_no_group_and_no_record(make_pool, tmp_path):
    pool = make_pool(episode_workers=2)
    before = pool.run(SPECS)
    pids = [worker_pid(pool, place) for place in (0, 1)]

    def kill_once(group):
        if pids:
            os.kill(pids.pop(), signal.SIGKILL)

    after = pool.run(SPECS, kill_once)
    assert [[replace(e, seconds=0) for e in group.episodes] for group in after] == [
        [replace(e, seconds=0) for e in group.episodes] for group in before
    ]
    os.kill(worker_pid(pool), signal.SIGKILL)
    path = tmp_path / "step-000001.parquet"
    pool.record(after, [[0.0, 0.0]] * 12, path=str(path), step=1, run="r").wait()
    assert len(read_trajectories(path)) == 24


def test_deaths_are_counted_by_step(make_pool, monkeypatch):
    monkeypatch.setattr("k3rl.rollout.pool.DEATHS_LIMIT", 1)
    pool = make_pool()

    def killing(times):
        killed = []

        def kill(group):
            worker = pool.episode_workers[0].identity
            if len(killed) < times and worker not in killed:
                killed.append(worker)
                os.kill(worker_pid(pool), signal.SIGKILL)

        return kill

    for _ in range(2):
        assert len(pool.run(SPECS, killing(1))) == 12
    with pytest.raises(InfrastructureError, match="rollout workers died 2 times in one step"):
        pool.run(SPECS, killing(2))


@pytest.fixture
def make_guessing_pool(make_pool, tiny_model):
    """Pools whose model plays `guess_domain`, with its weights published."""
    from k3rl.model import load_config, load_model
    from k3rl.sync import publish

    def make(**rollout):
        environment = {"guess": {"_target_": "guess_domain.GuessDomain"}}
        pool = make_pool(environment, model=load_config(tiny_model), max_context=128, slots=4, **rollout)
        pool.publish(ray.put(publish(load_model(tiny_model), 3, list(range(1, 73)))))
        return pool

    return make


GUESS = replace(SPEC, domain="guess", player="model", temperature=1.0)
GUESSES = [replace(GUESS, index=index) for index in range(4)]


def break_engine(pool):
    def fail():
        raise ZeroDivisionError("the engine is broken on purpose")

    def spoil(worker):
        worker._engine._engine.step = fail

    ray.get(pool.policy_workers[0].__ray_call__.remote(spoil))


def outcomes(groups):
    return [[replace(episode, seconds=0) for episode in group.episodes] for group in groups]


def test_a_living_worker_whose_engine_failed_is_replaced(make_guessing_pool, caplog):
    pool = make_guessing_pool()
    before = pool.run(GUESSES)
    assert all(episode.sampled_tokens and not episode.error for group in before for episode in group.episodes)
    broken = pool.policy_workers[0]
    break_engine(pool)
    assert outcomes(pool.run(GUESSES)) == outcomes(before)  # the same weights, by the last publication
    assert pool.policy_workers[0] is not broken
    (record,) = caplog.records
    assert record.getMessage() == (
        "1 policy and 0 episode workers died: starting new ones (the engine stopped: ZeroDivisionError: the engine is "
        "broken on purpose)"
    )


def test_a_policy_worker_that_cannot_start_says_why(make_pool):
    from k3rl.model import preset

    with pytest.raises(ConfigError, match="an engine of 0 slots and 640 tokens"):
        make_pool(model=preset("nano"), slots=0)


def test_a_worker_that_dies_while_it_starts_is_told_in_one_line(make_pool):
    with pytest.raises(InfrastructureError, match="a rollout worker died while it started") as caught:
        make_pool({"echo": {"_target_": "os._exit", "status": 1}})
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("settings", "text"),
    [
        ({"_target_": "echo_domain.Nothing"}, "environment.echo._target_=echo_domain.Nothing"),
        ({"_target_": "echo_domain.EchoDomain", "colour": 1}, "environment.echo: .*colour"),
    ],
)
def test_a_domain_that_cannot_be_made_is_a_user_s_error(make_pool, settings, text):
    with pytest.raises(ConfigError, match=text) as caught:
        make_pool({"echo": settings})
    assert "\n" not in str(caught.value)


def test_episodes_of_a_raising_domain_are_told(make_pool, tmp_path):
    pool = make_pool({"echo": {**ECHO["echo"], "fail_every": 2}})
    groups = pool.run([SPEC])
    first, second = groups[0].episodes
    assert first.success
    assert (second.reward, second.stop) == (None, StopReason.ENVIRONMENT)
    assert second.error == "RuntimeError: the echo is broken on purpose"
    metrics = step_metrics(groups)
    assert (metrics["faults"], metrics["success"], metrics["turns"]) == (1, 1.0, 2.0)
    path = tmp_path / "step-000001.parquet"
    pool.record(groups, [[0.5, 0.0]], path=str(path), step=1, run="r").wait()
    assert [(row.advantage, row.score is None) for row in read_trajectories(path)] == [(0.5, False), (None, True)]


def test_a_task_that_cannot_be_made_names_the_domain(make_pool):
    with pytest.raises(EnvironmentFault, match=r"domain echo could not make task 0 of train, level one: TypeError"):
        make_pool().run([replace(SPEC, level="one")])


def test_a_group_that_takes_too_long_names_its_domain(make_pool):
    pool = make_pool(deadline_seconds=0.001)
    with pytest.raises(DeadlineError, match=r"no group of echo finished within 0\.001 s"):
        pool.run([replace(SPEC, samples=4)])
