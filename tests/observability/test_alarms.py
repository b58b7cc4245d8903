"""Alarms are told once, and only for what they are about."""

import pytest

from k3rl.observability.alarms import StillExperts, tell_mismatch


def test_experts_that_stand_still_are_told_once(caplog):
    alarm = StillExperts(1e-3)
    alarm.look({"skipped": 1.0, "lr": 0.0}, "skipped")
    # a warm-up's first step and a cosine's last ones change nothing, and should not
    for step, (still, rate) in enumerate([(1.0, 2e-5), (0.0, 1e-3), (1.0, 4e-4), (1.0, 1e-3), (1.0, 1e-6)]):
        alarm.look({"experts/alarm_still": still, "lr": rate}, f"step {step}")
    (record,) = caplog.records
    assert record.getMessage().startswith("step 2: not one MXFP4 value of the routed experts changed")
    assert "\n" not in record.getMessage()


@pytest.mark.parametrize(("mean", "p99", "told"), [(4.9e-5, 4.9e-4, 0), (5e-5, 1e-6, 1), (1e-6, 5e-4, 1)])
def test_a_mismatch_over_either_bar_is_told(mean, p99, told, caplog):
    figures = {"mismatch/mean": mean, "mismatch/p99": p99, "mismatch/n": 40.0}
    tell_mismatch(figures, "step 3")
    assert len(caplog.records) == told
    for record in caplog.records:
        assert record.getMessage().startswith("step 3: |log p_rollout - log p_learner| has mean")
        assert "over 40 tokens" in record.getMessage()
    caplog.clear()
    tell_mismatch({**figures, "mismatch/n": 0.0}, "step 4")
    tell_mismatch({"skipped": 1.0}, "step 5")
    assert not caplog.records
