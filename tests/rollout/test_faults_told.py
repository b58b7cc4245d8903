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
    tell_faults([episode("a"), episode("b", StopReason.TOKENS)], "step 1")
    assert not caplog.records


def test_some_faults_are_told_with_the_most_frequent_error(caplog):
    broken = StopReason.ENVIRONMENT
    episodes = [episode("a"), episode("a", broken, "rare")]
    episodes += [episode("a", broken, "often", task=f"task-{n}") for n in range(2)]
    with caplog.at_level(logging.WARNING):
        tell_faults(episodes, "step 7")
    (record,) = caplog.records
    assert "step 7: 3 of 4 episodes of a failed, e.g. task-0: often" in record.getMessage()


@pytest.mark.parametrize(
    ("stop", "kind"),
    [(StopReason.ENVIRONMENT, EnvironmentFault), (StopReason.INFRASTRUCTURE, InfrastructureError)],
)
def test_a_domain_of_faults_alone_ends_the_job(stop, kind):
    with pytest.raises(kind, match=r"evaluation: 2 of 2 episodes of b failed, e\.g\. t: boom") as caught:
        tell_faults([episode("a"), episode("b", stop, "boom"), episode("b", stop, "boom")], "evaluation")
    assert "\n" not in str(caught.value)
