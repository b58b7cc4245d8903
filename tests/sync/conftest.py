"""A learner's model, its publication, and an engine's model that holds other weights."""

import pytest
import torch

from k3rl.model import Model, preset
from k3rl.sync import publish

CANARY = tuple(range(3, 43))


def random_model(seed, dtype=torch.float32):
    torch.set_num_threads(1)
    torch.manual_seed(seed)
    model = Model(preset("nano").with_vocabulary(101)).to(dtype)
    with torch.no_grad():
        model.lm_head.mul_(20)  # as sharp as a trained model: differences show
    return model


@pytest.fixture(scope="session")
def learner():
    return random_model(0)


@pytest.fixture(scope="session")
def publication(learner):
    return publish(learner, 7, CANARY)


@pytest.fixture
def held():
    """A model as an engine holds it, with other weights."""
    return random_model(1)
