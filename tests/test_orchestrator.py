"""How long a run says it will be, what it counts as spent, and what it says of a step's episodes."""

import time
from types import SimpleNamespace

import pytest

from k3rl.clock import Clock
from k3rl.config import Config, TrainSection
from k3rl.orchestrator import Job, step_metrics
from k3rl.run_folder import RunFolder


@pytest.mark.parametrize(
    ("steps", "limit", "step", "spent", "expected"),
    [
        (400, 0.0, 7, 30.0, 400),  # no limit: all steps
        (400, 480.0, 0, 0.0, None),  # nothing to go by yet
        (400, 480.0, 10, 64.0, 75),  # 480 / 6.4
        (400, 480.0, 10, 63.0, 77),  # the step in which time runs out is taken: 480 / 6.3 = 76.2
        (60, 480.0, 10, 64.0, 60),  # steps run out first
        (400, 480.0, 80, 481.0, 80),  # over
    ],
)
def test_a_run_with_a_time_limit_expects_as_many_steps_as_fit(steps, limit, step, spent, expected):
    config = Config(train=TrainSection(steps=steps, seconds=limit))
    job = SimpleNamespace(config=config, state=SimpleNamespace(step=step), training_seconds=lambda: spent)
    assert Job.expected_steps(job) == expected


def learn_and_die(clock):
    with clock.timed("learn"):
        time.sleep(0.01)
        raise KeyboardInterrupt


def test_time_that_a_killed_run_spent_is_not_forgotten(tmp_path):
    with RunFolder(tmp_path) as folder:
        killed = Clock(folder)
        killed.add("rollout", 5.0)
        for _ in range(2):
            with pytest.raises(KeyboardInterrupt):
                learn_and_die(killed)
        assert killed.seconds["learn"] >= 0.02
        # no checkpoint was written: the next start goes on from step 0, but not from second 0
        started = SimpleNamespace(folder=folder, clock=Clock(folder), curriculum=SimpleNamespace(start=dict))
        assert Job._resume(started).step == 0
        assert started.clock.seconds == killed.seconds
        assert Job.training_seconds(started) == 5.0 + killed.seconds["learn"]


def test_the_level_of_a_step_is_the_mean_of_those_drawn():
    """Whatever drew them: the curriculum's own level says nothing where levels are drawn uniformly or by signal."""
    groups = [
        SimpleNamespace(spec=SimpleNamespace(domain=domain, level=level), episodes=())
        for domain, level in [("office", 1), ("office", 4), ("office", 5), ("terminal", 2)]
    ]
    metrics = step_metrics(groups)
    assert metrics["level/office"] == pytest.approx(10 / 3)
    assert metrics["level/terminal"] == 2
