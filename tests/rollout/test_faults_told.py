"""Which faults of episodes are told and which end the job."""

import logging

import pytest

from k3rl.errors import EnvironmentFault, InfrastructureError
from k3rl.rollout.faults import tell_faults
from k3rl.rollout.group import EpisodeSummary
from k3rl.types import StopReason, Tier


def episode(domain, stop=StopReason.ENDED, error="", task="t"):
    return EpisodeSummary(
        task_id=task,
        domain=domain,
        split="train",
        family="f",
        level=1,
        tier=Tier.LOW,
        sample=0,
        reward=None if error else 0.0,
        stop=stop,
        error=error,
    )


def test_no_faults_no_words(caplog):
    tell_faults([episode("a"), episode("b", StopReason.TOKENS)], "step 1", 0.5)
    assert not caplog.records


def test_some_faults_are_told_with_the_most_frequent_error(caplog):
    broken = StopReason.ENVIRONMENT
    episodes = [episode("a"), episode("a", broken, "rare")]
    episodes += [episode("a", broken, "often", task=f"task-{n}") for n in range(2)]
    with caplog.at_level(logging.WARNING):
        tell_faults(episodes, "step 7", 0.8)
    (record,) = caplog.records
    assert "step 7: 3 of 4 episodes of a failed, e.g. task-0: often" in record.getMessage()


@pytest.mark.parametrize(
    ("stop", "kind"),
    [(StopReason.ENVIRONMENT, EnvironmentFault), (StopReason.INFRASTRUCTURE, InfrastructureError)],
)
@pytest.mark.parametrize(("faulty", "limit"), [(4, 1.0), (2, 0.5), (3, 0.51)])
def test_too_large_a_share_of_one_domain_ends_the_job(stop, kind, faulty, limit):
    episodes = [episode("a")] * 9 + [episode("b", stop, "boom")] * faulty + [episode("b")] * (4 - faulty)
    with pytest.raises(kind, match=rf"evaluation: {faulty} of 4 episodes of b failed, e\.g\. t: boom") as caught:
        tell_faults(episodes, "evaluation", limit)
    assert f"(rollout.fault_limit={limit:g})" in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_share_below_the_limit_goes_on(caplog):
    broken = [episode("b", StopReason.INFRASTRUCTURE, "boom")]
    tell_faults(broken * 2 + [episode("b")] * 2, "step 1", 0.51)
    assert "2 of 4 episodes of b failed" in caplog.text
