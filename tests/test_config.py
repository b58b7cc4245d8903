"""The configuration: what conf/ composes to, and one clear line for everything that cannot be run."""

from pathlib import Path

import pytest

from k3rl.cli import compose
from k3rl.config import Config, load
from k3rl.errors import ConfigError

EXPERIMENTS = sorted(file.stem for file in (Path(__file__).parents[1] / "conf" / "experiment").glob("*.yaml"))


@pytest.mark.parametrize("experiment", EXPERIMENTS)
def test_every_experiment_composes(experiment):
    config = compose([f"experiment={experiment}"])
    assert config.name == experiment
    assert config.run_dir == f"runs/{experiment}"
    assert set(config.environment) == {"terminal", "code_repair", "office"}
    assert all("_target_" in domain for domain in config.environment.values())


def test_without_an_experiment_the_schema_s_defaults_hold():
    config = compose(["environment=[]"])
    defaults = Config()
    assert config.rollout == defaults.rollout
    assert config.learner == defaults.learner
    assert config.environment == {}


def test_overrides_reach_the_configuration():
    config = compose(
        [
            "environment=[terminal]",
            "rollout.tasks_per_step=24",
            "learner.betas=[0.8, 0.99]",
            "curriculum.weights={terminal: 2.0}",
            "evaluation.levels={1: 0.25, 3: 0.75}",
            "environment.terminal.sandboxes=2",
        ]
    )
    assert config.rollout.tasks_per_step == 24
    assert config.learner.betas == (0.8, 0.99)
    assert config.curriculum.weights == {"terminal": 2.0}
    assert config.evaluation.levels == {1: 0.25, 3: 0.75}
    assert config.environment["terminal"]["sandboxes"] == 2


REFUSED = {
    "rollout.tasks_per_stp=3": "tasks_per_stp",
    "+rollout.tasks_per_stp=3": "unknown configuration key rollout.tasks_per_stp",
    "rollout.tasks_per_step=many": "rollout.tasks_per_step='many': input should be a valid integer",
    "experiment=quickstrat": "Could not find 'experiment/quickstrat' Available options in 'experiment':",
    "rollout.samples_per_task=0": "rollout.samples_per_task=0: must be at least 1",
    "rollout.samples_per_task=1": "needs at least 2 samples",
    "algorithm.objective=ppo": "algorithm.objective='ppo': choose one of grpo, rejection",
    "learner.micro_batch_tokens=100": "learner.micro_batch_tokens=100 is below rollout.max_context=640",
    "rollout.temperature=0": "rollout.temperature=0.0",
    "evaluation.temperature=0": "evaluation.temperature=0.0: samples need a finite temperature",
    "evaluation.heldout_tasks=-1": "evaluation.heldout_tasks=-1: must be at least 0",
    "+rollout.thinking.huge=9": "a tier of rollout.thinking='huge': choose one of low, high, max",
    "rollout.max_context=1": "rollout.max_context=1: must be at least 2",
    "algorithm.divide_by_std=true": "algorithm.domain_scaling normalise the same thing twice: set one",
    "+sft.shares.abacus=2": "sft.shares names abacus: not among environment (",
    "+sft.shares.office=0": "sft.shares.office=0: must be above 0",
    "sft.stages=[{unfinished: [0.2, 1.0]}]": "sft stage solutions: unfinished=[0.2, 1]: each must be at least 0 and",
    "sft.stages=[{source: copy, unfinished: [0.2]}]": "unfinished is for source=solutions, not copy",
    "sft.stages=[{train: indexer}]": "sft stage solutions: train=indexer needs sparse=false",
    "sft.stages=[{source: folder}]": "sft stage solutions: source=folder needs a path",
    "rollout.fault_limit=0": "rollout.fault_limit=0: a share above 0, at most 1",
    "rollout.environment_seconds=0": "rollout.environment_seconds=0: must be above 0",
    "rollout.deadline_seconds=720": "4 attempts (1 + rollout.retries) x (120 s for a turn or call that hangs + 60 s",
    "curriculum.max_level=0": "curriculum.max_level=0: must be at least 1",
    "learner.learning_rate=0": "learner.learning_rate=0: must be above 0",
    "learner.betas=[0.9,1.0]": "learner.betas[1]=1: must be at least 0 and below 1",
    "learner.clip_gradient=-1": "learner.clip_gradient=-1: must be at least 0",
    "learner.warmup_steps=-1": "learner.warmup_steps=-1: must be at least 0",
    "algorithm.clip_low=1": "algorithm.clip_low=1: must be above 0 and below 1",
    "algorithm.clip_high=0": "algorithm.clip_high=0: must be above 0",
    "algorithm.domain_scaling_floor=0": "algorithm.domain_scaling_floor=0: must be above 0",
    "algorithm.domain_scaling_decay=1": "algorithm.domain_scaling_decay=1: must be at least 0 and below 1",
    "train.seconds=nan": "train.seconds=nan: must be at least 0",
    "sft.variants=0": "sft.variants=0: must be at least 1",
    "sft.demonstrations=-1": "sft.demonstrations=-1: must be at least 0",
    "sft.stages=[{learning_rate: -1}]": "sft stage solutions: learning_rate=-1: must be above 0",
    "sft.stages=[{prompt_weight: -1}]": "sft stage solutions: prompt_weight=-1: must be at least 0",
    "curriculum.replay=1.5": "curriculum.replay=1.5",
    "evaluation.levels={0: 1}": "level 0 of evaluation.levels=0: must be at least 1",
    "sft.stages=[{steps: 0}]": "sft stage solutions: steps=0: must be at least 1",
    "curriculum.band=[0.8, 0.2]": "curriculum.band=[0.8, 0.2]",
    "evaluation.levels={1: 0.5, 2: 0.25}": "0.5 + 0.25 = 0.75",
    "curriculum.weights={chess: 1}": "curriculum.weights names chess",
    "curriculum.weights={terminal: 0, code_repair: 0, office: 0}": "above 0 for one domain",
}


@pytest.mark.parametrize("override", REFUSED)
def test_what_cannot_be_run_is_refused_in_one_line(override):
    with pytest.raises(ConfigError) as caught:
        compose([override])
    assert REFUSED[override] in str(caught.value)
    assert "\n" not in str(caught.value)


def test_either_normalisation_of_advantages_is_accepted():
    for divide in (True, False):
        config = compose([f"algorithm.divide_by_std={divide}", f"algorithm.domain_scaling={not divide}"])
        assert config.algorithm.divide_by_std is divide


def test_an_impossible_split_prints_its_arithmetic():
    with pytest.raises(ConfigError, match=r"tasks_per_step 2 x samples_per_task 3 = 6 trajectories.*learner\.ranks=8"):
        load({"rollout": {"tasks_per_step": 2, "samples_per_task": 3}, "learner": {"ranks": 8}})


def test_all_mistakes_are_told_at_once():
    with pytest.raises(ConfigError) as caught:
        load({"seed": "x", "learner": {"rank": 2}})
    assert "seed='x'" in str(caught.value)
    assert "unknown configuration key learner.rank" in str(caught.value)


def test_a_cosine_that_is_all_warm_up_is_refused():
    with pytest.raises(ConfigError, match=r"train\.steps=5 has no step left after learner\.warmup_steps=5"):
        compose(["experiment=quickstart", "train.steps=5"])
    assert compose(["experiment=quickstart", "train.steps=6"]).train.steps == 6


def test_demonstrations_are_needed_where_a_stage_learns_from_them():
    with pytest.raises(ConfigError, match=r"sft\.demonstrations=0: must be at least 1"):
        compose(["sft.demonstrations=0", "sft.stages=[{source: solutions}]"])
    assert compose(["sft.demonstrations=0", "sft.stages=[{source: copy}]"]).sft.demonstrations == 0


def test_stages_are_checked_by_name():
    with pytest.raises(ConfigError, match="sft stage late: source='web'"):
        load({"sft": {"stages": [{"name": "late", "source": "web"}]}})
