"""A resumed learner is the uninterrupted one, to the bit; and exports are the model that was trained."""

from pathlib import Path

import pytest
import torch

from k3rl.algorithms.objectives import GRPO, SFT
from k3rl.errors import CheckpointError, InfrastructureError
from k3rl.learner.config import LearnerConfig
from k3rl.learner.learner import Learner
from k3rl.model import load_model
from tests.learner.nano import rollouts, supervised, write_model

CONFIG = LearnerConfig(learning_rate=1e-3, weight_decay=0.01, max_tokens=80)


def test_four_steps_are_two_and_a_resume_and_two(folder: Path, tmp_path: Path) -> None:
    batches = [rollouts(folder, [20, 31, 12], seed=i, shift=0.02) for i in range(4)]
    straight = Learner(folder, CONFIG)
    wanted = [straight.step(batch, GRPO()) for batch in batches]

    first = Learner(folder, CONFIG)
    for batch in batches[:2]:
        first.step(batch, GRPO())
    first.save(tmp_path / "step-2")
    torch.manual_seed(99)  # what another process would have drawn
    second = Learner(folder, LearnerConfig(learning_rate=1e-3, weight_decay=0.01, max_tokens=80, seed=5))
    second.load(tmp_path / "step-2")
    got = [second.step(batch, GRPO()) for batch in batches[2:]]

    assert second.steps == straight.steps == 4
    for want, have in zip(wanted[2:], got, strict=True):
        assert {k: v for k, v in want.items() if k != "seconds"} == {k: v for k, v in have.items() if k != "seconds"}
    for (name, a), b in zip(straight.model.state_dict().items(), second.model.state_dict().values(), strict=True):
        assert a.equal(b), name
    one, two = straight.sharded.state(), second.sharded.state()
    assert one.keys() == two.keys()
    assert all(one[name].equal(two[name]) for name in one), "moments and step counter"


def test_the_random_state_goes_on(folder: Path, tmp_path: Path) -> None:
    learner = Learner(folder, CONFIG)
    torch.manual_seed(3)
    torch.rand(5)
    learner.save(tmp_path / "c")
    wanted = torch.rand(4)
    torch.manual_seed(77)
    learner.load(tmp_path / "c")
    assert torch.rand(4).equal(wanted)


def test_balanced_router_bias_and_steps_survive(folder: Path, tmp_path: Path) -> None:
    config = LearnerConfig(balance_rate=0.01)
    learner = Learner(folder, config)
    for _ in range(3):
        learner.step(supervised([20, 30]), SFT())
    learner.save(tmp_path / "c")
    other = Learner(folder, config)
    other.load(tmp_path / "c")
    biases = [b for n, b in learner.model.state_dict().items() if n.endswith(".bias")]
    assert len(biases) == 3
    assert all(b.any() for b in biases)
    assert all(
        a.equal(b) for a, b in zip(learner.model.state_dict().values(), other.model.state_dict().values(), strict=True)
    )


def test_a_checkpoint_of_another_stage_or_model_is_refused(folder: Path, tmp_path: Path) -> None:
    learner = Learner(folder, CONFIG)
    learner.save(tmp_path / "c")
    with pytest.raises(CheckpointError, match="another model or stage"):
        Learner(folder, LearnerConfig(train="indexer", sparse=False)).load(tmp_path / "c")
    (tmp_path / "c" / "tensors.safetensors").write_bytes(b"no")
    with pytest.raises(CheckpointError, match=r"tensors.safetensors has 2 bytes"):
        learner.load(tmp_path / "c")
    with pytest.raises(CheckpointError, match=r"manifest.json is missing"):
        learner.load(tmp_path / "absent")


def test_exports_are_the_trained_model(tmp_path: Path) -> None:
    folder = write_model(tmp_path / "base")
    (folder / "tokenizer.json").write_text("{}")
    learner = Learner(folder, CONFIG)
    for batch in range(2):
        learner.step(rollouts(folder, [20, 31], seed=batch), GRPO())
    tokens = torch.arange(40)
    with torch.no_grad():
        wanted = learner.model(tokens).logits
        for packed in (True, False):
            learner.export(tmp_path / f"out-{packed}", packed=packed)
            assert (tmp_path / f"out-{packed}" / "tokenizer.json").read_text() == "{}"
            model = load_model(tmp_path / f"out-{packed}")
            model.qat = True
            assert model(tokens).logits.equal(wanted)
    masters = load_model(tmp_path / "out-False").state_dict()
    assert all(masters[name].equal(tensor) for name, tensor in learner.model.state_dict().items())


def test_an_export_that_cannot_be_written_is_one_line(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(InfrastructureError, match="could not be written"):
        Learner(folder, CONFIG).export(tmp_path / "file" / "model")
