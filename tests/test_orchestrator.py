"""How long a run says it will be, and what it says of a step's episodes."""

from types import SimpleNamespace

import pytest

from k3rl.config import Config, TrainSection
from k3rl.orchestrator import Job, step_metrics


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


def test_the_level_of_a_step_is_the_mean_of_those_drawn():
    """Whatever drew them: the curriculum's own level says nothing where levels are drawn uniformly or by signal."""
    groups = [
        SimpleNamespace(spec=SimpleNamespace(domain=domain, level=level), episodes=())
        for domain, level in [("office", 1), ("office", 4), ("office", 5), ("terminal", 2)]
    ]
    metrics = step_metrics(groups)
    assert metrics["level/office"] == pytest.approx(10 / 3)
    assert metrics["level/terminal"] == 2
