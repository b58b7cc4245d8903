"""Domains by `_target_`: what is built, and what is told when it cannot be."""

import pytest

from k3rl.domains import known_domains, make_domain, make_domains
from k3rl.errors import ConfigError


def test_settings_are_the_class_s_arguments():
    domains = make_domains({"echo": {"_target_": "echo_domain.EchoDomain", "fail_every": 3}})
    assert domains["echo"].name == "echo"
    assert domains["echo"]._fail_every == 3


@pytest.mark.parametrize(
    ("settings", "text"),
    [
        ({}, "environment.x._target_='': name a class"),
        ({"_target_": "EchoDomain"}, "name a class, as in package.module.Class"),
        ({"_target_": "no_such_module.Domain"}, "No module named 'no_such_module'"),
        ({"_target_": "echo_domain.EchoDomian"}, "EchoDomian"),
        ({"_target_": "echo_domain.EchoDomain", "colour": "red"}, "colour"),
        ({"_target_": "fractions.Fraction"}, "not a k3rl.environment.Domain"),
    ],
)
def test_a_bad_target_is_told_in_one_line(settings, text):
    with pytest.raises(ConfigError) as caught:
        make_domain("x", settings)
    assert text in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("target", "settings", "text"),
    [
        ("code_repair.CodeRepair", {"sandboxes": 0}, "environment.x: a pool of 0 sandboxes: must be at least 1"),
        ("code_repair.CodeRepair", {"seconds": 0.0}, "environment.x: seconds=0: must be above 0"),
        ("office.OfficeDomain", {"judges": -1}, "environment.x: a pool of -1 sandboxes: must be at least 1"),
        ("terminal.Terminal", {"sandboxes": 0}, "environment.x: sandboxes, graders and bystanders must be at least 1"),
    ],
)
def test_settings_that_cannot_work_are_told_with_the_domain_s_name(target, settings, text):
    with pytest.raises(ConfigError) as caught:
        make_domain("x", {"_target_": f"k3rl.environments.{target}", **settings})
    assert str(caught.value).startswith(text)
    assert "\n" not in str(caught.value)


def test_a_job_needs_a_domain():
    with pytest.raises(ConfigError, match="environment is empty"):
        make_domains({})


def test_the_shipped_domains_are_known():
    assert {"terminal", "code_repair", "office"} <= known_domains().keys()
