"""Alarms are told once, and only for what they are about."""

from k3rl.observability.alarms import StillExperts


def test_experts_that_stand_still_are_told_once(caplog):
    alarm = StillExperts()
    for step, metrics in enumerate(
        ({"skipped": 1.0}, {"experts/alarm_still": 0.0}, {"experts/alarm_still": 1.0}, {"experts/alarm_still": 1.0})
    ):
        alarm.look(metrics, f"step {step}")
    (record,) = caplog.records
    assert record.getMessage().startswith("step 2: not one MXFP4 value of the routed experts changed")
    assert "\n" not in record.getMessage()
