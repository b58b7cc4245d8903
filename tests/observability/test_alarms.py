"""Alarms are told once, and only for what they are about."""

from k3rl.observability.alarms import StillExperts


def test_experts_that_stand_still_are_told_once(caplog):
    alarm = StillExperts(1e-3)
    alarm.look({"skipped": 1.0, "lr": 0.0}, "skipped")
    # a warm-up's first step and a cosine's last ones change nothing, and should not
    for step, (still, rate) in enumerate([(1.0, 2e-5), (0.0, 1e-3), (1.0, 4e-4), (1.0, 1e-3), (1.0, 1e-6)]):
        alarm.look({"experts/alarm_still": still, "lr": rate}, f"step {step}")
    (record,) = caplog.records
    assert record.getMessage().startswith("step 2: not one MXFP4 value of the routed experts changed")
    assert "\n" not in record.getMessage()
